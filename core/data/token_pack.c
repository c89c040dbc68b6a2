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

/* Lists of samples by the tokens that they have left. */
struct open_samples {
    struct number_set left; /* with a sample */
    uint32_t *first;        /* (context + 1) */
    uint32_t *next;         /* (samples) */
    int64_t count, capacity;
};

/* Removes a sample with the least capacity that is at least `count`, and returns it; NONE. */
static uint32_t take(struct open_samples *o, int64_t count, int64_t *left)
{
    *left = set_next(&o->left, count);
    if (*left < 0) return NONE;
    uint32_t sample = o->first[*left];
    o->first[*left] = o->next[sample];
    if (o->first[*left] == NONE) set_remove(&o->left, *left);
    return sample;
}

static void put(struct open_samples *o, uint32_t sample, int64_t left)
{
    if (o->first[left] == NONE) set_add(&o->left, left);
    o->next[sample] = o->first[left];
    o->first[left] = sample;
}

/* Returns a new sample; NONE: no memory. */
static uint32_t add_sample(struct open_samples *o)
{
    if (o->count == o->capacity) {
        int64_t more = o->capacity ? 2 * o->capacity : 1024;
        uint32_t *next = realloc(o->next, (size_t)more * sizeof *next);
        if (!next) return NONE;
        o->next = next;
        o->capacity = more;
    }
    return (uint32_t)o->count++;
}

/* Assigns each document, in the given order, to a sample. */
static bool place_all(struct token_pack *p, struct open_samples *o, uint32_t *sample_of, int64_t context)
{
    for (int64_t k = 0; k < p->documents; k++) {
        int64_t count = length_of(p, p->order[k]), left;
        uint32_t sample = take(o, count, &left);
        if (sample == NONE) {
            sample = add_sample(o);
            left = context;
        }
        if (sample == NONE) return false;
        sample_of[p->order[k]] = sample;
        if (left > count) put(o, sample, left - count);
        if (k % PROGRESS == 0) progress_mark();
    }
    p->operations += o->left.operations + 8 * p->documents;
    return true;
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

/* Numbers the samples by their first document, and sets the documents of each. `number` has an entry for
 * each sample. */
static bool order_by_sample(struct token_pack *p, uint32_t *sample_of, uint32_t *number, int64_t samples)
{
    p->samples = 0;
    p->begins = calloc((size_t)samples + 1, sizeof *p->begins);
    if (!p->begins) return false;
    for (int64_t s = 0; s < samples; s++) number[s] = NONE;
    for (int64_t i = 0; i < p->documents; i++) {
        uint32_t *s = &number[sample_of[i]];
        if (*s == NONE) *s = (uint32_t)p->samples++;
        sample_of[i] = *s;
        p->begins[*s + 1]++;
    }
    for (int64_t s = 0; s < samples; s++) p->begins[s + 1] += p->begins[s];
    for (int64_t i = 0; i < p->documents; i++) p->order[p->begins[sample_of[i]]++] = (uint32_t)i;
    for (int64_t s = samples; s > 0; s--) p->begins[s] = p->begins[s - 1]; /* each was moved to its end */
    p->begins[0] = 0;
    p->operations += 4 * p->documents + 3 * samples;
    return true;
}

int token_pack_make(struct token_pack *p, int64_t context, uint64_t seed, struct error *err)
{
    size_t documents = (size_t)(p->documents ? p->documents : 1);
    uint32_t *sample_of = malloc(documents * sizeof *sample_of);
    struct open_samples o = {.first = malloc((size_t)(context + 1) * sizeof *o.first)};
    p->order = malloc(documents * sizeof *p->order);
    bool done = set_open(&o.left, context) && sample_of && o.first && p->order && order_by_length(p, seed);
    if (done) memset(o.first, 0xff, (size_t)(context + 1) * sizeof *o.first);
    done = done && place_all(p, &o, sample_of, context);
    set_close(&o.left);
    done = done && order_by_sample(p, sample_of, o.next, o.count);
    free(o.first);
    free(o.next);
    free(sample_of);
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
