/* Numbers of the environment, and the cards that its variables leave to see: for tests/gpu/fake_driver.cc. */
#ifndef MEOPT_TESTS_GPU_FAKE_VISIBLE_H
#define MEOPT_TESTS_GPU_FAKE_VISIBLE_H

#include <cstdlib>
#include <vector>

static long long number(const char *name, long long missing)
{
    const char *text = getenv(name);
    return text && *text ? atoll(text) : missing;
}

/* What a list like "2,0" leaves of `cards`: up to the first number that is none of them. */
static std::vector<int> listed(const std::vector<int> &cards, const char *variable)
{
    const char *text = getenv(variable);
    std::vector<int> left;
    if (!text) return cards;
    for (char *end; *text; text = *end == ',' ? end + 1 : end) {
        long i = strtol(text, &end, 10);
        if (end == text || i < 0 || i >= (long)cards.size()) break;
        left.push_back(cards[(size_t)i]);
    }
    return left;
}
/* The cards that programs see, by their numbers on the machine. HIP reads CUDA's variable where it has
 * none. */
static std::vector<int> visible()
{
    std::vector<int> cards;
    for (int i = 0; i < number("FAKE_CARDS", 1); i++) cards.push_back(i);
#ifdef FAKE_CUDA
    return listed(cards, "CUDA_VISIBLE_DEVICES");
#else
    cards = listed(cards, "ROCR_VISIBLE_DEVICES");
    return listed(cards, getenv("HIP_VISIBLE_DEVICES") ? "HIP_VISIBLE_DEVICES" : "CUDA_VISIBLE_DEVICES");
#endif
}

#endif
