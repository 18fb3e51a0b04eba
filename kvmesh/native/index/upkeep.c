/* What happens to a table now and then: blocks are moved or cleaned, or all of them given back. */
#include "base/shell.h"
#include "index/index.h"

/* Return the set of an entry and a mask together; NO_SET with MemoryError set. */
static uint32_t joined(Table *self, uint32_t number, const Mask *mask) {
    uint32_t size = number == NO_SET ? 0 : self->sets.sets[number].size;
    uint32_t most = size > mask->size ? size : mask->size;
    uint64_t *words = sets_scratch(&self->sets, most);
    if (words == NULL) {
        return NO_SET;
    }
    for (uint32_t i = 0; i < most; i++) {
        words[i] = (i < size ? self->sets.sets[number].words[i] : 0) |
                   (i < mask->size ? mask->words[i] : 0);
    }
    return sets_intern(&self->sets, words, most);
}

static int move_block(Table *self, Table *target, uint64_t block, const Mask *mask) {
    Shard *from = self->shards + (block & 255), *to = target->shards + (block & 255);
    uint64_t hash = mixed(block);
    Entry *entry = shard_find(to, block, hash);
    TRY_IF(entry != NULL, table_keep_entry(target, block & 255, hash, entry));
    uint32_t set = joined(target, entry == NULL ? NO_SET : entry->set, mask);
    if (set == NO_SET) {
        return -1;
    }
    if (entry != NULL) {
        rename_entry(target, entry, set);
    } else if (add_new(target, to, block, hash, set) < 0) {
        return -1;
    }
    entry = shard_find(from, block, hash);
    TRY_IF(entry != NULL, table_keep_entry(self, block & 255, hash, entry));
    if (entry != NULL) {
        drop_entry(self, from, block, hash, entry);
    }
    return 0;
}

PyObject *table_move(Table *self, ARGUMENTS) {
    Py_buffer view;
    Mask mask;
    REFUSE_OR_NULL(nargs != 3 || !Py_IS_TYPE(args[2], &table_type) || (PyObject *)self == args[2],
                   PyExc_TypeError, "move takes a run, a mask and another Table");
    TRY_OR_NULL(mask_read(args[1], &mask));
    Table *target = (Table *)args[2];
    int failed = -1;
    if (!mask.size) {
        PyErr_SetString(PyExc_ValueError, "blocks are moved for somebody: mask is 0");
    } else if (PyObject_GetBuffer(args[0], &view, PyBUF_SIMPLE) == 0) {
        Py_ssize_t count = view.len / BLOCK_BYTES;
        failed = 0;
        self->changes++;
        target->changes++;
        for (Py_ssize_t i = 0; !failed && i < count; i++) {
            failed = move_block(self, target, run_block(view.buf, i), &mask) < 0;
        }
        PyBuffer_Release(&view);
    }
    PyMem_Free(mask.words);
    return failed ? NULL : Py_NewRef(Py_None);
}

/* Return a set without the bits of a mask: NO_SET and *empty for nobody, NO_SET with MemoryError. */
static uint32_t cleaned(Table *self, uint32_t number, const Mask *dead, int *empty) {
    uint32_t size = self->sets.sets[number].size;
    uint64_t *words = sets_scratch(&self->sets, size), any = 0;
    if (words == NULL) {
        return NO_SET;
    }
    for (uint32_t i = 0; i < size; i++) {
        words[i] = self->sets.sets[number].words[i] & (i < dead->size ? ~dead->words[i] : ~0ULL);
        any |= words[i];
    }
    *empty = !any;
    return any ? sets_intern(&self->sets, words, size) : NO_SET;
}

/* Clear bits in one segment: 1 when blocks are left that nobody holds any more, -1 for no memory. */
static int clean_entries(Table *self, Segment *segment, const Mask *dead) {
    uint32_t before = NO_SET, after = NO_SET;
    int empty = 0, orphans = 0;
    for (uint32_t at = 0; at < segment->room; at++) {
        Entry *entry = segment->entries + at;
        const Set *set = self->sets.sets + entry->set;
        if (!entry->set || !masks_meet(set->words, set->size, dead)) {
            continue;
        }
        if (entry->set != before) {
            empty = 0;
            before = entry->set;
            after = cleaned(self, before, dead, &empty);
            if (after == NO_SET && !empty) {
                return -1;
            }
        }
        if (empty) {
            orphans = 1;
        } else {
            rename_entry(self, entry, after);
        }
    }
    return orphans;
}

/* Take out what nobody alive holds. */
static void drop_orphans(Table *self, uint32_t number, Segment *segment, const Mask *dead) {
    for (uint32_t at = 0; at < segment->room;) {
        Entry *entry = segment->entries + at;
        const Set *set = self->sets.sets + entry->set;
        if (entry->set && masks_meet(set->words, set->size, dead)) {
            sets_release(&self->sets, entry->set);
            segment_remove(self->shards + number, number, segment, entry);
            self->blocks--; /* another may be here now: look again */
        } else {
            at++;
        }
    }
}

#define CLEANED 16384U /* places of one call: 0.7 ms */
#define SHRUNK 32768U  /* so many blocks are given less room in one go */

/* Return whether a shard has far more room than blocks: its rooms are at least a quarter full as long as
 * blocks only come. */
static int is_sparse(const Shard *shard) {
    uint64_t room = 0;
    const Segment *segment;
    for (uint64_t walk = 0; (segment = shard_walk(shard, &walk)) != NULL;) {
        room += segment->room;
    }
    return shard->used <= SHRUNK && 4 * (uint64_t)shard->used < room;
}

/* Clear bits in one segment, which may be another afterwards; -1 for no memory. */
static int clean_segment(Table *self, uint32_t number, Segment *segment, uint64_t hash,
                         const Mask *dead) {
    TRY(table_keep_segment(self, number, segment));
    int orphans = clean_entries(self, segment, dead);
    if (orphans > 0) {
        drop_orphans(self, number, segment, dead);
        return segment_fit(self->shards + number, number, segment, hash);
    }
    return orphans;
}

/* Return the least hash at a place of a shard's directory. */
static uint64_t hash_at(const Shard *shard, uint64_t place) { return place << 1 << (63 - shard->depth); }

/* Clear bits in some of a shard's segments, from that of the hash on; *hash is that of the next one then, 0
 * behind the last. Segments that were split or joined since are cleared whole. -1 for no memory. */
static int clean_some(Table *self, uint32_t number, uint64_t *hash, const Mask *dead) {
    Shard *shard = self->shards + number;
    Segment *segment;
    if (shard->homes == NULL) {
        *hash = 0;
        return 0;
    }
    uint64_t place = shard_place(shard, *hash), places = 0;
    place &= ~((1ULL << (shard->depth - shard_segment(shard, *hash)->depth)) - 1); /* where it begins */
    uint64_t walk = place;
    for (; places < CLEANED && (segment = shard_walk(shard, &walk)) != NULL; place = walk) {
        places += segment->room;
        TRY(clean_segment(self, number, segment, hash_at(shard, place), dead));
    }
    int done = walk >> shard->depth != 0;
    *hash = done ? 0 : hash_at(shard, walk);
    return done && is_sparse(shard) ? shard_resize(shard, number, 0) : 0;
}

int64_t table_clear_some(Table *self, uint32_t number, PyObject *bits, uint64_t *hash) {
    Mask dead;
    uint32_t before = self->shards[number].used;
    TRY(mask_read(bits, &dead));
    self->changes++;
    int failed = clean_some(self, number, hash, &dead) < 0;
    PyMem_Free(dead.words);
    return failed ? -1 : (int64_t)(before < CLEANED ? before : CLEANED);
}

PyObject *table_clear_bits(Table *self, ARGUMENTS) {
    PyObject *shard, *bits;
    uint32_t number;
    uint64_t hash;
    TRY_OR_NULL(READ_PLACED("clear_bits", "OOK", "number bits hash", &shard, &bits, &hash));
    TRY_OR_NULL(shard_number(shard, &number));
    int64_t blocks = table_clear_some(self, number, bits, &hash);
    return blocks < 0 ? NULL : Py_BuildValue("LK", (long long)blocks, (unsigned long long)hash);
}

static void free_piece(PyObject *capsule) {
    Shard *shard = PyCapsule_GetPointer(capsule, NULL);
    shard_free(shard);
    PyMem_Free(shard);
}

/* Return what holds the memory of a shard, which is empty then; NULL with MemoryError set. */
static PyObject *piece_of(Table *self, Shard *shard) {
    Shard *moved = PyMem_Malloc(sizeof *moved);
    NEED_MEMORY_OR_NULL(moved);
    PyObject *piece = PyCapsule_New(moved, NULL, free_piece);
    if (piece == NULL) {
        PyMem_Free(moved);
        return NULL;
    }
    *moved = *shard;
    self->blocks -= shard->used;
    self->changes++;
    *shard = (Shard){.next = moved->next};
    return piece;
}

PyObject *table_pieces(Table *self, PyObject *Py_UNUSED(nothing)) {
    PyObject *pieces = PyList_New(SHARDS);
    for (int number = 0; pieces != NULL && number < SHARDS; number++) {
        Shard *shard = self->shards + number;
        int empty = shard->homes == NULL || self->frozen != NULL;
        PyObject *piece = empty ? Py_NewRef(Py_None) : piece_of(self, shard);
        set_made(&pieces, number, piece);
    }
    return pieces;
}
