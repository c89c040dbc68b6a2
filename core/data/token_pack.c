/* Whole documents in samples: see token_pack.h. */
#include "core/data/token_pack.h"
#include "core/base/progress.h"
#include "kernels/philox.h"

#include <stdlib.h>
#include <string.h>

/* A place: the first token above LENGTH_BITS, and the tokens less one. */
enum { LENGTH_BITS = 24, FIRST_BITS = 40, PROGRESS = 1 << 20 };
#define NONE UINT32_MAX

static int64_t length_of(const struct token_pack *p, int64_t document)
{
    return (int64_t)(p->places[document] & ((1u << LENGTH_BITS) - 1)) + 1;
}

static int no_memory(struct error *err, int64_t documents)
{
    return error_set(err, EXIT_HOST_MEMORY, "set data.documents: apart", "out of memory for %lld documents",
                     (long long)documents);
}

int token_pack_add(struct token_pack *p, int64_t first, int64_t count, struct error *err)
{
    if (first >> FIRST_BITS || count > 1 << LENGTH_BITS || p->documents >= NONE - 1)
        return error_set(err, EXIT_CONFIG, "divide the files, or set data.documents: apart",
                         "more than %lld documents or %lld tokens cannot be whole", (long long)NONE - 1,
                         1LL << FIRST_BITS);
    if (p->documents == p->capacity) {
        int64_t more = p->capacity ? 2 * p->capacity : 1024;
        uint64_t *places = realloc(p->places, (size_t)more * sizeof *places);
        if (!places) return no_memory(err, more);
        p->places = places;
        p->capacity = more;
    }
    p->places[p->documents++] = (uint64_t)first << LENGTH_BITS | (uint64_t)(count - 1);
    p->tokens += count;
    if (count > p->longest) p->longest = count;
    if (p->documents % PROGRESS == 0) progress_mark();
    return 0;
}

/* ---- samples by the capacity that they have left ---- */

/* A set of numbers: bit n of level 0 is number n, bit n of another level says that word n below is not 0. */
enum { LEVELS = 5 };
struct number_set {
    uint64_t *level[LEVELS];
    int64_t words[LEVELS], operations;
};

static bool set_open(struct number_set *s, int64_t numbers)
{
    bool done = true;
    *s = (struct number_set){0};
    for (int i = 0; i < LEVELS; i++) {
        numbers = s->words[i] = numbers / 64 + 1;
        s->level[i] = calloc((size_t)numbers, sizeof **s->level);
        done &= s->level[i] != NULL;
    }
    return done;
}

static void set_close(struct number_set *s)
{
    for (int i = 0; i < LEVELS; i++) free(s->level[i]);
}

static void set_add(struct number_set *s, int64_t n)
{
    for (int i = 0; i < LEVELS; i++, n /= 64, s->operations++) s->level[i][n / 64] |= 1ULL << n % 64;
}

static void set_remove(struct number_set *s, int64_t n)
{
    for (int i = 0; i < LEVELS; i++, n /= 64, s->operations++)
        if ((s->level[i][n / 64] &= ~(1ULL << n % 64)) != 0) return;
}

/* Returns the smallest number that is at least n; -1: none. */
static int64_t set_next(struct number_set *s, int64_t n)
{
    for (int i = 0; i < LEVELS && n / 64 < s->words[i]; i++, n = n / 64 + 1, s->operations++) {
        uint64_t word = s->level[i][n / 64] >> n % 64;
        if (!word) continue;
        n += __builtin_ctzll(word);
        for (; i > 0; s->operations++) n = 64 * n + __builtin_ctzll(s->level[--i][n]);
        return n;
    }
    return -1;
}

/* Samples while they are made. Those that have tokens left are in lists by their number. */
struct samples {
    struct number_set left; /* numbers of tokens that a sample has left */
    uint32_t *with;         /* (context + 1) the first sample that has as many left; NONE */
    uint32_t *next;         /* (capacity) the next one of that list */
    uint32_t *documents;    /* (capacity) the last document of a sample; NONE: it is empty */
    uint32_t *before;       /* (documents of the pack) the one before it in its sample; NONE */
    int64_t count, capacity;
};

/* Removes a sample with the least tokens left that are at least `count`, and returns it; NONE. */
static uint32_t take(struct samples *o, int64_t count, int64_t *left)
{
    *left = set_next(&o->left, count);
    if (*left < 0) return NONE;
    uint32_t sample = o->with[*left];
    o->with[*left] = o->next[sample];
    if (o->with[*left] == NONE) set_remove(&o->left, *left);
    return sample;
}

static void put(struct samples *o, uint32_t sample, int64_t left)
{
    if (o->with[left] == NONE) set_add(&o->left, left);
    o->next[sample] = o->with[left];
    o->with[left] = sample;
}

static bool grow(uint32_t **values, int64_t count)
{
    uint32_t *more = realloc(*values, (size_t)count * sizeof *more);
    if (more) *values = more;
    return more != NULL;
}

/* Returns a new sample; NONE: no memory. */
static uint32_t add_sample(struct samples *o)
{
    if (o->count == o->capacity) {
        int64_t more = o->capacity ? 2 * o->capacity : 1024;
        if (!grow(&o->next, more) || !grow(&o->documents, more)) return NONE;
        o->capacity = more;
    }
    o->documents[o->count] = NONE;
    return (uint32_t)o->count++;
}

static void add_document(struct samples *o, uint32_t sample, uint32_t document)
{
    o->before[document] = o->documents[sample];
    o->documents[sample] = document;
}

/* Places each document, in p->order, in a sample. */
static bool place_all(struct token_pack *p, struct samples *o, int64_t context)
{
    for (int64_t k = 0; k < p->documents; k++) {
        int64_t count = length_of(p, p->order[k]), left;
        uint32_t sample = take(o, count, &left);
        if (sample == NONE) {
            sample = add_sample(o);
            left = context;
        }
        if (sample == NONE) return false;
        add_document(o, sample, p->order[k]);
        if (left > count) put(o, sample, left - count);
        if (k % PROGRESS == 0) progress_mark();
    }
    p->operations += o->left.operations + 8 * p->documents;
    return true;
}

/* ---- improvement: two samples at a time ---- */

static uint64_t draw(uint64_t *state) /* splitmix64 (Steele, Lea, Flood 2014) */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

enum { PAIR = 12 }; /* most documents of two samples that are divided again */

/* Divides the documents of two samples so that one of them is as full as it can be. Returns whether it is
 * fuller than before. */
static bool divide(struct token_pack *p, struct samples *o, uint32_t a, uint32_t b, int64_t context)
{
    uint32_t all[PAIR];
    int32_t sums[1 << (PAIR - 1)], best = 0, sum = 0;
    int count = 0, chosen = -1;
    for (int k = 0; k < 2; k++) {
        int32_t own = 0;
        for (uint32_t d = o->documents[k ? b : a]; d != NONE; d = o->before[d]) {
            if (count == PAIR) return false;
            own += (int32_t)length_of(p, d);
            all[count++] = d;
        }
        sum += own;
        if (own > best) best = own;
    }
    p->operations += 1 << (count - 1);
    sums[0] = 0;
    for (int set = 0; set < 1 << (count - 1); set++) { /* the last document is in none */
        if (set) sums[set] = sums[set & (set - 1)] + (int32_t)length_of(p, all[__builtin_ctz((unsigned)set)]);
        int32_t fuller = sums[set] > sum - sums[set] ? sums[set] : sum - sums[set];
        if (fuller > context || fuller <= best) continue;
        best = fuller;
        chosen = set;
    }
    if (chosen < 0) return false;
    o->documents[a] = o->documents[b] = NONE;
    for (int i = 0; i < count; i++) add_document(o, chosen >> i & 1 ? a : b, all[i]);
    return true;
}

/* Sets the samples that have documents and tokens left, and returns their number. *used: those with
 * documents. */
static int64_t open_samples(const struct token_pack *p, const struct samples *o, int64_t context,
                            uint32_t *open, int64_t *used)
{
    int64_t count = 0;
    *used = 0;
    for (int64_t s = 0; s < o->count; s++) {
        int64_t sum = 0;
        for (uint32_t d = o->documents[s]; d != NONE; d = o->before[d]) sum += length_of(p, d);
        *used += sum > 0;
        if (sum > 0 && sum < context) open[count++] = (uint32_t)s;
    }
    return count;
}

/* Where best fit leaves more than 1 % of padding, divides random pairs of samples again, in rounds, until
 * there is less, or a bound of operations is reached. o->next is overwritten. */
static void improve(struct token_pack *p, struct samples *o, int64_t context, uint64_t seed)
{
    enum { SHARE = 100, IDLE = 32, EACH = 100, LEAST = 20000000, MOST = 10 * LEAST };
    int64_t more = EACH * p->documents, used;
    int64_t bound = p->operations + (more < LEAST ? LEAST : more > MOST ? MOST : more);
    for (int idle = 0; idle < IDLE && p->operations < bound; idle++) {
        int64_t count = open_samples(p, o, context, o->next, &used);
        int64_t padding = used * context - p->tokens;
        p->operations += p->documents + 2 * count;
        if (padding < context || SHARE * padding < used * context) return;
        progress_mark();
        for (int64_t i = count - 1; i > 0; i--) {
            int64_t other = (int64_t)(draw(&seed) % (uint64_t)(i + 1));
            uint32_t swapped = o->next[i];
            o->next[i] = o->next[other];
            o->next[other] = swapped;
        }
        for (int64_t i = 0; i + 1 < count; i += 2)
            if (divide(p, o, o->next[i], o->next[i + 1], context)) idle = -1;
    }
}

/* ---- orders ---- */

/* Sets the order by length, the longest first; those of one length are shuffled by the seed. */
static bool order_by_length(struct token_pack *p, uint64_t seed)
{
    uint32_t *begins = calloc((size_t)p->longest + 2, sizeof *begins); /* of longest - length */
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32) ^ 0x7061636bu};
    if (!begins) return false;
    for (int64_t i = 0; i < p->documents; i++) begins[p->longest - length_of(p, i) + 1]++;
    for (int64_t n = 0; n <= p->longest; n++) begins[n + 1] += begins[n];
    for (int64_t i = 0; i < p->documents; i++) p->order[begins[p->longest - length_of(p, i)]++] = (uint32_t)i;
    for (int64_t n = 0, begin = 0; n < p->longest; begin = begins[n++]) /* begins[n] is the end of n now */
        for (int64_t i = begins[n] - 1; i > begin; i--) {
            uint32_t counter[4] = {(uint32_t)i}, out[4];
            philox4x32_10(counter, key, out);
            int64_t other = begin + (int64_t)(((uint64_t)out[0] * (uint64_t)(i - begin + 1)) >> 32);
            uint32_t swapped = p->order[i];
            p->order[i] = p->order[other];
            p->order[other] = swapped;
        }
    free(begins);
    p->operations += 4 * p->documents + p->longest;
    return true;
}

/* Numbers the samples by their first document, and sets the documents of each, in the order of the files.
 * o->next and o->before are overwritten. */
static bool order_by_sample(struct token_pack *p, struct samples *o)
{
    uint32_t *sample_of = p->order, *number = o->next;
    p->samples = 0;
    p->begins = calloc((size_t)o->count + 1, sizeof *p->begins);
    if (!p->begins) return false;
    for (int64_t s = 0; s < o->count; s++) {
        number[s] = NONE;
        for (uint32_t d = o->documents[s]; d != NONE; d = o->before[d]) sample_of[d] = (uint32_t)s;
    }
    for (int64_t i = 0; i < p->documents; i++) {
        uint32_t *s = &number[sample_of[i]];
        if (*s == NONE) *s = (uint32_t)p->samples++;
        sample_of[i] = *s;
        p->begins[*s + 1]++;
    }
    for (int64_t s = 0; s < p->samples; s++) p->begins[s + 1] += p->begins[s];
    for (int64_t i = 0; i < p->documents; i++) o->before[p->begins[sample_of[i]]++] = (uint32_t)i;
    for (int64_t s = p->samples; s > 0; s--) p->begins[s] = p->begins[s - 1]; /* each was moved to its end */
    p->begins[0] = 0;
    p->order = o->before;
    o->before = sample_of;
    p->operations += 5 * p->documents + 3 * o->count;
    return true;
}

int token_pack_make(struct token_pack *p, int64_t context, uint64_t seed, struct error *err)
{
    size_t documents = (size_t)(p->documents ? p->documents : 1);
    struct samples o = {.with = malloc((size_t)(context + 1) * sizeof *o.with),
                        .before = malloc(documents * sizeof *o.before)};
    p->order = malloc(documents * sizeof *p->order);
    bool done = set_open(&o.left, context) && o.with && o.before && p->order && order_by_length(p, seed);
    if (done) memset(o.with, 0xff, (size_t)(context + 1) * sizeof *o.with);
    done = done && place_all(p, &o, context);
    if (done) improve(p, &o, context, seed);
    set_close(&o.left);
    done = done && order_by_sample(p, &o);
    free(o.with);
    free(o.next);
    free(o.documents);
    free(o.before);
    return done ? 0 : no_memory(err, p->documents);
}

int64_t token_pack_count(const struct token_pack *p, int64_t sample)
{
    return p->begins[sample + 1] - p->begins[sample];
}

int64_t token_pack_document(const struct token_pack *p, int64_t sample, int64_t i, int64_t *first)
{
    uint32_t document = p->order[p->begins[sample] + i];
    *first = (int64_t)(p->places[document] >> LENGTH_BITS);
    return length_of(p, document);
}

void token_pack_free(struct token_pack *p)
{
    free(p->places);
    free(p->order);
    free(p->begins);
    *p = (struct token_pack){0};
}
