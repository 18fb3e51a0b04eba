/* Loader: fills a table from the parts of a snapshot, and counts what each set of workers got. */
#include "base/shell.h"
#include "table/table.h"

typedef struct {
    PyObject_HEAD
    Table *table;
    PyObject *masks;  /* list: number -> mask */
    Py_ssize_t count;
    uint32_t *sets;   /* number -> the table's set, pinned once it is used */
    uint64_t *blocks; /* per number */
    uint64_t *sums;   /* of their hashes, mod 2^64 */
    uint8_t filled[SHARDS];
} Loader;

PyObject *table_loader(Table *self, PyObject *masks) {
    REFUSE_OR_NULL(!PyList_Check(masks), PyExc_TypeError, "masks are a list");
    Loader *loader = PyObject_New(Loader, &loader_type);
    NEED_OR_NULL(loader);
    size_t count = (size_t)PyList_GET_SIZE(masks) + 1;
    loader->table = (Table *)Py_NewRef(self);
    loader->masks = PyList_GetSlice(masks, 0, PY_SSIZE_T_MAX);
    loader->count = PyList_GET_SIZE(masks);
    memset(loader->filled, 0, sizeof loader->filled);
    loader->sets = PyMem_Calloc(count, sizeof *loader->sets);
    loader->blocks = PyMem_Calloc(count, sizeof *loader->blocks);
    loader->sums = PyMem_Calloc(count, sizeof *loader->sums);
    if (loader->masks == NULL || !loader->sets || !loader->blocks || !loader->sums) {
        Py_CLEAR(loader);
        return PyErr_NoMemory();
    }
    return (PyObject *)loader;
}

static void loader_dealloc(Loader *self) {
    for (Py_ssize_t number = 0; self->sets != NULL && number < self->count; number++) {
        if (self->sets[number] != NO_SET) {
            sets_release(&self->table->sets, self->sets[number]);
        }
    }
    self->table->changes++;
    FREE_ALL(self->sets, self->blocks, self->sums);
    Py_XDECREF(self->masks);
    Py_DECREF(self->table);
    PyObject_Free(self);
}

/* Return the table's set of a number, NO_SET with an error set. */
static uint32_t set_of(Loader *self, uint32_t number) {
    Mask mask;
    if ((Py_ssize_t)number >= self->count) {
        PyErr_Format(PyExc_IndexError, "there is no set %u", number);
        return NO_SET;
    }
    if (self->sets[number] == NO_SET &&
        mask_read(PyList_GET_ITEM(self->masks, (Py_ssize_t)number), &mask) == 0) {
        uint32_t set = NO_SET;
        if (mask.size) {
            set = sets_intern(&self->table->sets, mask.words, mask.size);
        } else {
            PyErr_SetString(PyExc_ValueError, "a set is empty");
        }
        PyMem_Free(mask.words);
        if (set != NO_SET) {
            sets_refer(&self->table->sets, set);
            self->sets[number] = set;
        }
    }
    return self->sets[number];
}

/* Add the blocks of one shard: 1, 0 when one comes twice, -1 with an error set. */
static int add_blocks(Loader *self, uint32_t number, const uint8_t *keys, const uint8_t *sets,
                      Py_ssize_t count, size_t width) {
    Shard *shard = self->table->shards + number;
    for (Py_ssize_t i = 0; i < count; i++, keys += KEY_BYTES, sets += width) {
        uint64_t block = 0;
        uint32_t name = 0;
        memcpy(&block, keys, KEY_BYTES);
        memcpy(&name, sets, width);
        block = block << 8 | number;
        uint32_t set = set_of(self, name);
        if (set == NO_SET) {
            return -1;
        }
        uint64_t hash = mixed(block);
        if (shard_find(shard, block, hash) != NULL) {
            return 0;
        }
        TRY(add_new(self->table, shard, block, hash, set));
        self->blocks[name]++;
        self->sums[name] += block;
    }
    return 1;
}

static PyObject *loader_add(Loader *self, ARGUMENTS) {
    Py_buffer keys, sets;
    long long number, width;
    PyObject *packed, *named;
    TRY_OR_NULL(READ_PLACED("add", "LOOL", "number keys sets width", &number, &packed, &named,
                            &width));
    TRY_OR_NULL(PyObject_GetBuffer(packed, &keys, PyBUF_SIMPLE));
    if (PyObject_GetBuffer(named, &sets, PyBUF_SIMPLE) < 0) {
        PyBuffer_Release(&keys);
        return NULL;
    }
    Py_ssize_t count = keys.len / KEY_BYTES;
    int added = -1;
    if (number < 0 || number >= SHARDS || (width != 2 && width != 4) || keys.len % KEY_BYTES ||
        sets.len % width || sets.len / width != count || count > INT32_MAX) {
        PyErr_Format(PyExc_ValueError, "shard %lld: %zd bytes of keys, %zd of sets of width %lld",
                     number, keys.len, sets.len, width);
    } else if (self->table->frozen != NULL ||
               (self->table->shards[number].used && !self->filled[number])) {
        PyErr_Format(PyExc_ValueError, "shard %lld has blocks, or a view of it is open", number);
    } else {
        self->table->changes++;
        Shard *shard = self->table->shards + number; /* the first slice of a large one makes its room */
        if (self->filled[number] || shard_resize(shard, (uint32_t)number, (uint32_t)count) == 0) {
            self->filled[number] = 1;
            added = add_blocks(self, (uint32_t)number, keys.buf, sets.buf, count, (size_t)width);
        }
    }
    PyBuffer_Release(&sets);
    PyBuffer_Release(&keys);
    return added < 0 ? NULL : PyBool_FromLong(added);
}

static PyObject *loader_total(Loader *self, PyObject *object) {
    Py_ssize_t number = PyLong_AsSsize_t(object);
    if (number < 0 || number >= self->count) {
        return PyErr_Occurred() ? NULL
                                : PyErr_Format(PyExc_IndexError, "there is no set %zd", number);
    }
    return Py_BuildValue("KK", (unsigned long long)self->blocks[number],
                         (unsigned long long)self->sums[number]);
}

METHODS(methods,
    METHOD_FASTCALL("add", loader_add),
    METHOD_O("total", loader_total))

PyTypeObject loader_type = {
    INNER_TYPE("Loader", Loader, loader),
    .tp_methods = methods,
};
