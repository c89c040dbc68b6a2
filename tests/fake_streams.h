/* The streams and events of tests/fake_driver.cc, and their recording. */
#ifndef MEOPT_TESTS_FAKE_STREAMS_H
#define MEOPT_TESTS_FAKE_STREAMS_H

/* ---- Streams: what is to be done, in order, and what events it waits for ---- */

namespace
{
struct stream;
struct event {
    int card;
    stream *on = nullptr;             /* where it was recorded last */
    long long recorded = 0, done = 0; /* times */
};
struct work {
    std::function<void()> run;
    event *wait; /* before it: until this many records of it are done */
    long long until;
    std::function<bool()> ready; /* what somebody else does: asked again and again, and goes on meanwhile */
};
struct stream {
    int card;
    long long number;
    std::deque<work> queue;
};
} // namespace
static std::vector<stream *> streams;

/* The recording of a stream: what it is given does not begin. As with the real drivers, whatever asks for
 * memory, waits or touches events meanwhile fails and makes the recording void. */
static stream *recording;
static std::thread::id recorder; /* other threads are let be */
static bool recording_void;
static std::vector<std::function<void()>> recorded;

static bool not_recordable()
{
    bool own = recording && recorder == std::this_thread::get_id();
    recording_void = recording_void || own;
    return own;
}

/* Work off the stream until `wanted` is done `until` times; all of it without `wanted`. false: not yet, for
 * something that somebody else does is not ready. */
static bool try_work_off(stream *s, const event *wanted, long long until)
{
    while (!s->queue.empty() && (!wanted || wanted->done < until)) {
        work &first = s->queue.front();
        if (first.wait && first.wait->done < first.until &&
            !try_work_off(first.wait->on, first.wait, first.until))
            return false;
        if (first.ready && !first.ready()) return false;
        work now = first;
        s->queue.pop_front();
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
    long long late = number("FAKE_LATE", 0);
    if (late >= 0 && s->number != late) try_work_off(s, nullptr, 0);
    return 0;
}
static int give(void *p, const work &w)
{
    stream *s = (stream *)p;
    if (s->card != current_card()) return WRONG_CARD;
    if (s == recording) {
        if (w.wait) return not_recordable() ? NOT_RECORDABLE : 0;
        recorded.push_back(w.run);
        return 0;
    }
    return put(s, w);
}
static int give(void *p, std::function<void()> run) { return give(p, work{run, nullptr, 0, nullptr}); }

#endif
