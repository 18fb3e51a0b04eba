/* Interned sets of workers, see sets.h. Numbers come from an array, equal sets from a hash table. */
#include "base/arrays.h"
#include "base/mixing.h"
#include "table/sets.h"

#define FIRST_BUCKETS 64
#define MAX_SLOT (1U << 24)

static uint64_t hash_words(const uint64_t *words, uint32_t size) {
    uint64_t hash = size;
    for (uint32_t i = 0; i < size; i++) {
        hash = mixed(hash ^ words[i]);
    }
    return hash ^ hash >> 32; /* buckets are found by the lowest bits */
}

int sets_init(Sets *self) {
    memset(self, 0, sizeof *self);
    self->buckets = PyMem_Calloc(FIRST_BUCKETS, sizeof *self->buckets);
    self->sets = PyMem_Calloc(FIRST_BUCKETS, sizeof *self->sets);
    if (self->buckets == NULL || self->sets == NULL) {
        sets_clear(self);
        return no_memory();
    }
    self->bucket_count = self->bucket_room = self->level = self->room = FIRST_BUCKETS;
    self->used = 1; /* number 0 is NO_SET */
    return 0;
}

void sets_clear(Sets *self) {
    for (uint32_t number = 1; number < self->used; number++) {
        PyMem_Free(self->sets[number].words);
        Py_XDECREF(self->sets[number].mask);
    }
    FREE_ALL(self->sets, self->buckets, self->scratch);
    memset(self, 0, sizeof *self);
}

uint64_t *sets_scratch(Sets *self, uint32_t size) {
    if (size > self->scratch_room) {
        TRY_OR_NULL(RESIZE(self->scratch, size));
        self->scratch_room = size;
    }
    return self->scratch;
}

/* Return the bucket of a hash. Those from `level` on came one by one, each from that `level` before. */
static uint32_t *bucket_of(const Sets *self, uint64_t hash) {
    uint32_t place = hash & (self->level * 2ULL - 1);
    return self->buckets + (place < self->bucket_count ? place : hash & (self->level - 1));
}

/* Add a bucket; without memory for it the chains just get longer. */
static void add_bucket(Sets *self) {
    if (self->bucket_count == self->bucket_room) {
        size_t room = (size_t)self->bucket_room * 2;
        uint32_t *grown = room > UINT32_MAX / 2
                              ? NULL
                              : PyMem_Realloc(self->buckets, room * sizeof *grown);
        if (grown == NULL) {
            return;
        }
        self->buckets = grown;
        self->bucket_room = (uint32_t)room;
    }
    uint32_t *stay = self->buckets + (self->bucket_count - self->level);
    uint32_t *leave = self->buckets + self->bucket_count, number = *stay;
    *stay = *leave = NO_SET;
    while (number != NO_SET) {
        Set *set = self->sets + number;
        uint32_t *bucket = set->hash & self->level ? leave : stay, next = set->next;
        set->next = *bucket;
        *bucket = number;
        number = next;
    }
    if (++self->bucket_count == self->level * 2) {
        self->level *= 2;
    }
}

/* Return an unused number, NO_SET with MemoryError set. */
static uint32_t unused_number(Sets *self) {
    if (self->unused != NO_SET) {
        return self->unused;
    }
    if (self->used == self->room) {
        size_t room = (size_t)self->room * 2;
        if (RESIZE(self->sets, room > UINT32_MAX / 2 ? SIZE_MAX : (size_t)room) < 0) {
            return NO_SET;
        }
        self->room = (uint32_t)room;
    }
    return self->used;
}

uint32_t sets_intern(Sets *self, const uint64_t *words, uint32_t size) {
    while (size && !words[size - 1]) {
        size--;
    }
    uint64_t hash = hash_words(words, size);
    uint32_t number = *bucket_of(self, hash);
    for (; number != NO_SET; number = self->sets[number].next) {
        const Set *set = self->sets + number;
        if (set->hash == hash && set->size == size &&
            !memcmp(set->words, words, size * sizeof *words)) {
            return number;
        }
    }
    uint64_t *copy = PyMem_Malloc((size_t)(size ? size : 1) * sizeof *copy);
    number = copy == NULL ? NO_SET : unused_number(self);
    if (number == NO_SET) {
        PyMem_Free(copy);
        PyErr_NoMemory();
        return NO_SET;
    }
    if (size) {
        memcpy(copy, words, size * sizeof *copy);
    }
    if (self->interned >= self->bucket_count) {
        add_bucket(self);
    }
    Set *set = self->sets + number;
    if (number == self->used) {
        self->used++;
    } else {
        self->unused = set->next;
    }
    uint32_t *bucket = bucket_of(self, hash);
    *set = (Set){.hash = hash, .words = copy, .size = size, .next = *bucket};
    *bucket = number;
    self->interned++;
    return number;
}

uint32_t sets_flipped(Sets *self, uint32_t number, uint32_t slot) {
    uint32_t size = self->sets[number].size, word = slot / 64;
    uint32_t wanted = word < size ? size : word + 1;
    uint64_t *words = sets_scratch(self, wanted);
    if (words == NULL) {
        return NO_SET;
    }
    memcpy(words, self->sets[number].words, size * sizeof *words);
    memset(words + size, 0, (wanted - size) * sizeof *words);
    words[word] ^= 1ULL << (slot % 64);
    return sets_intern(self, words, wanted);
}

void sets_release(Sets *self, uint32_t number) {
    Set *set = self->sets + number;
    if (--set->refs) {
        return;
    }
    uint32_t *link = bucket_of(self, set->hash);
    while (*link != number) {
        link = &self->sets[*link].next;
    }
    *link = set->next;
    PyMem_Free(set->words);
    Py_XDECREF(set->mask);
    *set = (Set){.next = self->unused};
    self->unused = number;
    self->interned--;
}

PyObject *sets_mask(Sets *self, uint32_t number) {
    Set *set = self->sets + number;
    if (set->mask == NULL) {
        set->mask = mask_int(set->words, set->size);
    }
    return set->mask;
}

PyObject *mask_int(const uint64_t *words, uint32_t size) {
    if (size == 1) {
        return PyLong_FromUnsignedLongLong(words[0]);
    }
    return _PyLong_FromByteArray((const unsigned char *)words, size * sizeof *words, 1, 0);
}

int mask_read(PyObject *object, Mask *mask) {
    *mask = (Mask){NULL, 0};
    REFUSE(!PyLong_Check(object), PyExc_TypeError, "a mask is an int, not %.100s",
           Py_TYPE(object)->tp_name);
    size_t bits = _PyLong_NumBits(object);
    REFUSE(_PyLong_Sign(object) < 0 || bits > MAX_SLOT, PyExc_ValueError,
           "a mask is not below 0 and has at most %u bits", MAX_SLOT);
    uint32_t size = (uint32_t)((bits + 63) / 64);
    mask->words = PyMem_Calloc(size ? size : 1, sizeof *mask->words);
    NEED_MEMORY(mask->words);
    mask->size = size;
#if PY_VERSION_HEX >= 0x030D0000
    int failed = _PyLong_AsByteArray((PyLongObject *)object, (unsigned char *)mask->words,
                                     size * sizeof *mask->words, 1, 0, 1);
#else
    int failed = _PyLong_AsByteArray((PyLongObject *)object, (unsigned char *)mask->words,
                                     size * sizeof *mask->words, 1, 0);
#endif
    if (failed) {
        PyMem_Free(mask->words);
        *mask = (Mask){NULL, 0};
        return -1;
    }
    return 0;
}

int64_t mask_slot(PyObject *object) {
    Mask mask;
    TRY(mask_read(object, &mask));
    int64_t slot = -1;
    int bits = 0;
    for (uint32_t i = 0; i < mask.size; i++) {
        bits += __builtin_popcountll(mask.words[i]);
    }
    if (bits == 1) {
        slot = (int64_t)(mask.size - 1) * 64 + __builtin_ctzll(mask.words[mask.size - 1]);
    } else {
        PyErr_Format(PyExc_ValueError, "a worker's bit is one bit, not %d", bits);
    }
    PyMem_Free(mask.words);
    return slot;
}
