/* The Huffman code of HPACK. It is canonical, so the lengths of its codes say all of it. */
#include "http2/hpack.h"

#define SHORTEST 5
#define LONGEST 30
#define SYMBOLS 257
#define END_OF_TEXT 256

/* Bits of the code of each byte, and of the end. Source: RFC 7541, appendix B. */
static const uint8_t lengths[SYMBOLS] = {
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28,
    28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21,
    23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24,
    21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
};

static uint16_t symbols[SYMBOLS]; /* by length, then by value: in the order of their codes */
static uint64_t above[LONGEST + 1]; /* 1 + the last code of this length, as the top bits of 64 */
static uint64_t first[LONGEST + 1]; /* the first one, in its own bits */
static uint16_t place[LONGEST + 1]; /* of its symbol in `symbols` */

void huffman_ready(void) {
    uint64_t code = 0;
    uint16_t count = 0;
    for (int length = SHORTEST; length <= LONGEST; length++) {
        first[length] = code;
        place[length] = count;
        for (unsigned symbol = 0; symbol < SYMBOLS; symbol++) {
            if (lengths[symbol] == length) {
                symbols[count++] = (uint16_t)symbol;
                code++;
            }
        }
        above[length] = length == LONGEST ? UINT64_MAX : code << (64 - length);
        code <<= 1;
    }
}

/* Return the length of the code that `bits` begin with. */
static int length_of(uint64_t bits) {
    int length = SHORTEST;
    while (length < LONGEST && bits >= above[length]) {
        length++;
    }
    return length;
}

/* Decode into `to`, which has room for the most there can be; -1 for no text of this code. */
static Py_ssize_t decode(const uint8_t *at, size_t size, uint8_t *to) {
    uint64_t bits = 0; /* the next bits, from the top; behind them 0 */
    int held = 0;
    uint8_t *start = to;
    const uint8_t *end = at + size;
    for (;;) {
        while (held <= 56 && at < end) {
            bits |= (uint64_t)*at++ << (56 - held);
            held += 8;
        }
        int length = length_of(bits);
        if (length > held) {
            break;
        }
        unsigned symbol = symbols[place[length] + (bits >> (64 - length)) - first[length]];
        if (symbol == END_OF_TEXT) {
            return -1;
        }
        *to++ = (uint8_t)symbol;
        bits <<= length;
        held -= length;
    }
    /* What is left pads the last byte: fewer than 8 bits, all 1, as the end's code begins. */
    if (held > 7 || (held > 0 && bits >> (64 - held) != (1u << held) - 1)) {
        return -1;
    }
    return to - start;
}

PyObject *huffman_decode(const uint8_t *at, size_t size) {
    uint8_t few[512];
    size_t most = size * 8 / SHORTEST + 1;
    uint8_t *to = most <= sizeof few ? few : PyMem_Malloc(most);
    NEED_MEMORY_OR_NULL(to);
    Py_ssize_t length = decode(at, size, to);
    PyObject *text = length < 0 ? NULL : PyBytes_FromStringAndSize((char *)to, length);
    if (to != few) {
        PyMem_Free(to);
    }
    return text;
}
