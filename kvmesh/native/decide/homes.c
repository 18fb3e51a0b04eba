/* Where requests with one prompt cache key go while nothing else tells workers apart. */
#include "base/xxh3.h"
#include "decide/decide.h"

/* Tokens of a prompt's beginning that count beside its key, and how many requests a minute with both the
 * home is for: one key is often that of a whole application, which one worker cannot serve. Source:
 * OpenAI's guide to prompt caching.
 */
#define BEGINNING 256
#define REQUESTS_A_MINUTE 15.0

/* Return what stands for a key and the beginning of a prompt; of a shorter prompt, for the key alone. */
static uint64_t seed_of(const Decider *self, const Question *asked) {
    long long at = BEGINNING / self->block_size;
    uint64_t seed = at < 1 || asked->blocks < at
                        ? asked->affinity
                        : xxh3_64(asked->hashes + at - 1, sizeof *asked->hashes, asked->affinity);
    return seed ? seed : 1;
}

/* Return what of so many requests is left by now. */
static double level_of(const Rate *rate, uint64_t seed, double now) {
    double level = rate->level - (now - rate->at_s) * REQUESTS_A_MINUTE / 60.0;
    return rate->seed == seed && level > 0.0 ? level : 0.0;
}

uint64_t home_seed(const Decider *self, const Question *asked) {
    if (!asked->affinity) {
        return 0;
    }
    uint64_t seed = seed_of(self, asked);
    const Rate *rate = self->rates + (seed & (RATES - 1));
    return level_of(rate, seed, asked->asked.now) + 1.0 <= REQUESTS_A_MINUTE ? seed : 0;
}

void home_count(Decider *self, const Question *asked, double now) {
    if (asked->affinity) {
        uint64_t seed = seed_of(self, asked);
        Rate *rate = self->rates + (seed & (RATES - 1));
        *rate = (Rate){seed, level_of(rate, seed, now) + 1.0, now};
    }
}
