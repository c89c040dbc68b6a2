/* The streams and events of tests/gpu/fake_driver.cc, and their recording. */
#ifndef MEOPT_TESTS_GPU_FAKE_STREAMS_H
#define MEOPT_TESTS_GPU_FAKE_STREAMS_H

/* ---- Streams: what is to be done, in order, and what events it waits for ---- */

using moment = std::chrono::steady_clock::time_point;
static uint32_t streams_made;
namespace
{
struct stream;
struct event {
    int card;
    stream *on = nullptr;             /* where it was recorded last */
    long long recorded = 0, done = 0; /* times */
    moment at = {};                   /* that it was done last */
    clocks clock = {};
};
struct work {
    std::function<void()> run;
    event *wait; /* before it: until this many records of it are done */
    long long until;
    std::function<bool()> ready; /* work of another library: polled again and again, and running meanwhile */
    long long takes_us = 0;      /* at least */
    moment given = {};
    clocks host = {}; /* what it had waited for */
};
struct stream {
    int card;
    long long number;
    std::deque<work> queue;
    moment until = {}; /* what it has done so far took */
    clocks clock = {};
    uint32_t id = ++streams_made;
};
} // namespace
static std::vector<stream *> streams;

/* NULL: the card's default stream, which streams of this program do not wait for. */
static stream *stream_of(void *p)
{
    static stream *defaults[CARDS + 1];
    stream *&s = defaults[current_card() + 1];
    if (p || s) return p ? (stream *)p : s;
    s = new stream{current_card(), (long long)streams.size() + 1, {}, {}};
    if (current_card() >= 0) streams.push_back(s);
    return s;
}

/* How long kernels whose names begin so take: FAKE_TAKES, or fake_driver_takes. */
static std::vector<std::pair<std::string, long long>> taking;

static void set_taking(const char *text)
{
    taking.clear();
    for (char name[64]; text && sscanf(text, "%63[^=]", name) == 1;) {
        const char *value = strchr(text, '=');
        if (!value) break;
        taking.emplace_back(name, atoll(value + 1));
        text = strchr(value, ',');
        if (text) text++;
    }
}
static long long takes(const std::string &kernel)
{
    for (const auto &t : taking)
        if (kernel.compare(0, t.first.size(), t.first) == 0) return t.second;
    return 0;
}

/* The recording of a stream: what it is given does not begin. As with the real drivers, whatever asks for
 * memory, waits or touches events meanwhile fails and makes the recording void. */
static stream *recording;
static std::thread::id recorder; /* other threads are let be */
static bool recording_void;
static std::vector<work> recorded;

static bool not_recordable()
{
    bool own = recording && recorder == std::this_thread::get_id();
    recording_void = recording_void || own;
    return own;
}

/* Has the first of the stream taken its time? Its time begins at the end of its predecessor, however late the
 * check comes, so that other processes do not lengthen it. */
static bool is_due(stream *s)
{
    const work &w = s->queue.front();
    moment due = std::max(s->until, w.given) + std::chrono::microseconds(w.takes_us);
    if (std::chrono::steady_clock::now() < due) return false;
    s->until = due;
    return true;
}

/* Executes the stream until `wanted` is done `until` times, or all of it without `wanted`. Returns false
 * while work of another library is not finished. */
static bool try_work_off(stream *s, const event *wanted, long long until)
{
    while (!s->queue.empty() && (!wanted || wanted->done < until)) {
        work &first = s->queue.front();
        if (first.wait && first.wait->done < first.until &&
            !try_work_off(first.wait->on, first.wait, first.until))
            return false;
        if (first.ready && !first.ready()) return false;
        if (first.ready) s->until = std::chrono::steady_clock::now();
        if (first.wait) s->until = std::max(s->until, first.wait->at);
        if (first.takes_us && !is_due(s)) return false;
        work now = first;
        s->queue.pop_front();
        races_begin(s->id, s->clock, now.host, now.wait ? &now.wait->clock : nullptr);
        now.run();
    }
    return true;
}

/* The same, waited for: others may call the driver meanwhile. */
static void work_off(stream *s, const event *wanted, long long until)
{
    while (!try_work_off(s, wanted, until)) {
        inside_driver.unlock();
        usleep(50);
        inside_driver.lock();
    }
}
/* All of this thread's card. */
static void work_off_all()
{
    for (size_t i = 0; i < streams.size(); i++)
        if (streams[i]->card == current_card()) work_off(streams[i], nullptr, 0);
}
static int put(stream *s, const work &w)
{
    s->queue.push_back(w);
    s->queue.back().given = std::chrono::steady_clock::now();
    s->queue.back().host = host_clocks;
    long long late = number("FAKE_LATE", 0);
    if (late >= 0 && s->number != late) try_work_off(s, nullptr, 0);
    return 0;
}
static int give(void *p, const work &w)
{
    stream *s = stream_of(p);
    if (s->card != current_card()) return WRONG_CARD;
    if (s == recording) {
        if (w.wait) return not_recordable() ? NOT_RECORDABLE : 0;
        recorded.push_back(w);
        return 0;
    }
    return put(s, w);
}
static int give(void *p, std::function<void()> run, long long takes_us = 0)
{
    return give(p, work{run, nullptr, 0, nullptr, takes_us});
}

/* While kernels take time, streams advance by themselves, as a card's do, not only when a caller polls. */
namespace
{
struct clockwork {
    std::atomic<bool> stop{false};
    std::thread thread;
    void begin()
    {
        if (thread.joinable()) return;
        thread = std::thread([this] {
            while (!stop) {
                inside_driver.lock();
                for (size_t i = 0; i < streams.size(); i++) try_work_off(streams[i], nullptr, 0);
                inside_driver.unlock();
                usleep(200);
            }
        });
    }
    ~clockwork()
    {
        stop = true;
        if (thread.joinable()) thread.join();
    }
};
} // namespace
static clockwork going_on;

#endif
