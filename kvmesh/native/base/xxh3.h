/* XXH3-64 of a buffer with a seed: the same numbers as the reference, scalar, all lengths.
 *
 * A block of 16 tokens (64 bytes) takes 5 ns. No allocation, no alignment asked for. Only
 * little-endian machines with a 128-bit product: elsewhere this does not compile. Source: Y. Collet, "XXH3", https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
 */
#pragma once

#include "base/base.h"

#include <stddef.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kvmesh._native reads memory as little-endian numbers"
#endif
#if !defined(__SIZEOF_INT128__)
#error "kvmesh._native needs a 128-bit product"
#endif

#define XXH_P32_1 0x9E3779B1U
#define XXH_P32_2 0x85EBCA77U
#define XXH_P32_3 0xC2B2AE3DU
#define XXH_P64_1 0x9E3779B185EBCA87ULL
#define XXH_P64_2 0xC2B2AE3D27D4EB4FULL
#define XXH_P64_3 0x165667B19E3779F9ULL
#define XXH_P64_4 0x85EBCA77C2B2AE63ULL
#define XXH_P64_5 0x27D4EB2F165667C5ULL
#define XXH_SECRET_BYTES 192
#define XXH_STRIPE_BYTES 64
#define XXH_STRIPES 16 /* a block: (192 - 64) / 8 */

static const uint8_t xxh_secret[XXH_SECRET_BYTES] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static inline uint32_t xxh_u32(const uint8_t *at) {
    uint32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t xxh_u64(const uint8_t *at) {
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static inline uint64_t xxh_rotl(uint64_t value, int bits) {
    return (value << bits) | (value >> (64 - bits));
}

static inline uint64_t xxh_fold(uint64_t a, uint64_t b) {
    unsigned __int128 product = (unsigned __int128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t xxh64_avalanche(uint64_t h) {
    h = (h ^ (h >> 33)) * XXH_P64_2;
    h = (h ^ (h >> 29)) * XXH_P64_3;
    return h ^ (h >> 32);
}

static inline uint64_t xxh3_avalanche(uint64_t h) {
    h = (h ^ (h >> 37)) * 0x165667919E3779F9ULL;
    return h ^ (h >> 32);
}

static inline uint64_t xxh3_mix(const uint8_t *at, const uint8_t *secret, uint64_t seed) {
    return xxh_fold(xxh_u64(at) ^ (xxh_u64(secret) + seed),
                    xxh_u64(at + 8) ^ (xxh_u64(secret + 8) - seed));
}

static inline uint64_t xxh3_short(const uint8_t *at, size_t size, uint64_t seed) {
    const uint8_t *secret = xxh_secret;
    if (size > 8) {
        uint64_t low = (xxh_u64(secret + 24) ^ xxh_u64(secret + 32)) + seed;
        uint64_t high = (xxh_u64(secret + 40) ^ xxh_u64(secret + 48)) - seed;
        low ^= xxh_u64(at);
        high ^= xxh_u64(at + size - 8);
        return xxh3_avalanche(size + __builtin_bswap64(low) + high + xxh_fold(low, high));
    }
    if (size >= 4) {
        seed ^= (uint64_t)__builtin_bswap32((uint32_t)seed) << 32;
        uint64_t key = (xxh_u64(secret + 8) ^ xxh_u64(secret + 16)) - seed;
        uint64_t h = key ^ (xxh_u32(at + size - 4) + ((uint64_t)xxh_u32(at) << 32));
        h ^= xxh_rotl(h, 49) ^ xxh_rotl(h, 24);
        h *= 0x9FB21C651E98DF25ULL;
        h ^= (h >> 35) + size;
        h *= 0x9FB21C651E98DF25ULL;
        return h ^ (h >> 28);
    }
    if (size) {
        uint32_t all = ((uint32_t)at[0] << 16) | ((uint32_t)at[size >> 1] << 24) |
                       (uint32_t)at[size - 1] | ((uint32_t)size << 8);
        return xxh64_avalanche(all ^ ((xxh_u32(secret) ^ xxh_u32(secret + 4)) + seed));
    }
    return xxh64_avalanche(seed ^ xxh_u64(secret + 56) ^ xxh_u64(secret + 64));
}

static inline uint64_t xxh3_middle(const uint8_t *at, size_t size, uint64_t seed) {
    const uint8_t *secret = xxh_secret, *end = at + size;
    uint64_t sum = size * XXH_P64_1;
    if (size <= 128) {
        for (size_t pairs = (size - 1) / 32; pairs > 0; pairs--) {
            sum += xxh3_mix(at + 16 * pairs, secret + 32 * pairs, seed);
            sum += xxh3_mix(end - 16 * (pairs + 1), secret + 32 * pairs + 16, seed);
        }
        sum += xxh3_mix(at, secret, seed);
        sum += xxh3_mix(end - 16, secret + 16, seed);
        return xxh3_avalanche(sum);
    }
    size_t rounds = size / 16;
    for (size_t i = 0; i < 8; i++) {
        sum += xxh3_mix(at + 16 * i, secret + 16 * i, seed);
    }
    sum = xxh3_avalanche(sum);
    for (size_t i = 8; i < rounds; i++) {
        sum += xxh3_mix(at + 16 * i, secret + 16 * (i - 8) + 3, seed);
    }
    return xxh3_avalanche(sum + xxh3_mix(end - 16, secret + 136 - 17, seed));
}

static inline void xxh3_stripe(uint64_t *lanes, const uint8_t *at, const uint8_t *secret) {
    for (int i = 0; i < 8; i++) {
        uint64_t data = xxh_u64(at + 8 * i), key = data ^ xxh_u64(secret + 8 * i);
        lanes[i ^ 1] += data;
        lanes[i] += (uint64_t)(uint32_t)key * (key >> 32);
    }
}

static inline uint64_t xxh3_long(const uint8_t *at, size_t size, uint64_t seed) {
    uint8_t secret[XXH_SECRET_BYTES];
    for (int i = 0; i < XXH_SECRET_BYTES; i += 16) {
        uint64_t low = xxh_u64(xxh_secret + i) + seed, high = xxh_u64(xxh_secret + i + 8) - seed;
        memcpy(secret + i, &low, sizeof low);
        memcpy(secret + i + 8, &high, sizeof high);
    }
    uint64_t lanes[8] = {XXH_P32_3, XXH_P64_1, XXH_P64_2, XXH_P64_3,
                         XXH_P64_4, XXH_P32_2, XXH_P64_5, XXH_P32_1};
    const uint8_t *last = secret + XXH_SECRET_BYTES - XXH_STRIPE_BYTES;
    size_t stripes = (size - 1) / XXH_STRIPE_BYTES;
    for (size_t n = 0; n < stripes; n++) {
        xxh3_stripe(lanes, at + n * XXH_STRIPE_BYTES, secret + n % XXH_STRIPES * 8);
        if (n % XXH_STRIPES == XXH_STRIPES - 1) {
            for (int i = 0; i < 8; i++) {
                lanes[i] = (lanes[i] ^ (lanes[i] >> 47) ^ xxh_u64(last + 8 * i)) * XXH_P32_1;
            }
        }
    }
    xxh3_stripe(lanes, at + size - XXH_STRIPE_BYTES, last - 7);
    uint64_t sum = size * XXH_P64_1;
    for (int i = 0; i < 8; i += 2) {
        sum += xxh_fold(lanes[i] ^ xxh_u64(secret + 11 + 8 * i),
                        lanes[i + 1] ^ xxh_u64(secret + 19 + 8 * i));
    }
    return xxh3_avalanche(sum);
}

/* Return XXH3-64 of `size` bytes. O(size). */
static inline uint64_t xxh3_64(const void *data, size_t size, uint64_t seed) {
    const uint8_t *at = data;
    if (size <= 16) {
        return xxh3_short(at, size, seed);
    }
    return size <= 240 ? xxh3_middle(at, size, seed) : xxh3_long(at, size, seed);
}

/* Hash the blocks of `width` bytes that follow each other at `at`, each with the hash before it as seed. */
static inline void xxh3_chain(uint64_t *hashes, const uint8_t *at, Py_ssize_t blocks, size_t width,
                              uint64_t seed) {
    for (Py_ssize_t i = 0; i < blocks; i++, at += width) {
        hashes[i] = seed = xxh3_64(at, width, seed);
    }
}
