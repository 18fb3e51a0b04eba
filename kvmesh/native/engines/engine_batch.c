/* The msgpack of an engine's batch: see engine_batch.h.
 *
 * What is unusual is left to the pure decoder as a whole: text that is not ASCII, extension types,
 * numbers and text beyond their bounds, whatever it would refuse. So nothing here words an error.
 */
#include "base/arrays.h"
#include "base/xxh3.h"
#include "engines/engine_batch.h"

#define MOST_DEPTH 32
#define MOST_TEXT 4096
#define MOST_NUMBER 0x7FFFFFFFULL
#define MOST_UNKNOWN 16

enum { NIL, BOOL, UINT, NEGATIVE, FLOAT, TEXT, BYTES, ARRAY, MAP, ODD };

typedef struct {
    int what;
    int shortest;      /* written as msgspec would write it again */
    uint64_t number;   /* of an integer as u64, or how many items, pairs or bytes there are */
    const uint8_t *at; /* of text and bytes */
} Value;

typedef struct {
    const uint8_t *at, *end;
} Reader;

/* What was found of an event, by field. */
enum {
    BLOCK_HASHES, PARENT, TOKEN_IDS, BLOCK_SIZE, LORA_ID, MEDIUM, LORA_NAME, EXTRA_KEYS, GROUP, KIND,
    WINDOW, LOCALITY, OWNERSHIP, SESSION, SALT, MM_KEYS, LOOKAHEAD, TYPE, FIELDS
};

static const char *const field_names[FIELDS] = {
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
    "extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "locality",
    "ownership", "session_id", "cache_salt", "mm_keys", "lookahead_token_ids", "type",
};

#define STORED_FIELDS ((1U << FIELDS) - 1)
#define REMOVED_FIELDS \
    (1U << BLOCK_HASHES | 1U << MEDIUM | 1U << GROUP | 1U << LOCALITY | 1U << OWNERSHIP | 1U << TYPE)

enum { TAG_STORED, TAG_REMOVED, TAG_CLEARED, TAGS };
static const char *const tag_names[TAGS] = {"BlockStored", "BlockRemoved", "AllBlocksCleared"};
static const unsigned tag_fields[TAGS] = {STORED_FIELDS, REMOVED_FIELDS, 1U << TYPE};
static const int stored_order[] = {BLOCK_HASHES, PARENT, TOKEN_IDS, BLOCK_SIZE, LORA_ID, MEDIUM,
                                   LORA_NAME, EXTRA_KEYS, GROUP, KIND, WINDOW};
static const int removed_order[] = {BLOCK_HASHES, MEDIUM, GROUP};
static const int *const tag_order[TAGS] = {stored_order, removed_order, NULL};
static const uint64_t tag_places[TAGS] = {11, 3, 0};

typedef struct {
    unsigned found;
    int tag; /* TAGS: an unknown one */
    EngineEvent event;
    Value medium, lora_name, lora_id, kind, salt;
    Reader extras, mm; /* at NULL: none */
    int remote;
    Value unknown[MOST_UNKNOWN];
    uint64_t unknown_count;
} Found;

static uint64_t big_endian(const uint8_t *at, int size) {
    uint64_t number = 0;
    for (int i = 0; i < size; i++) {
        number = number << 8 | at[i];
    }
    return number;
}

static int more(const Reader *self, uint64_t bytes) { return (uint64_t)(self->end - self->at) >= bytes; }

/* Read the number behind a head; 0 when the message ends before. */
static int read_sized(Reader *self, int size, uint64_t *number) {
    EXPECT(more(self, (uint64_t)size));
    *number = big_endian(self->at, size);
    self->at += size;
    return 1;
}

/* Take text or bytes that follow; every item of a list or map takes a byte at least. */
static int check_body(Reader *self, Value *value) {
    int pairs = value->what == MAP;
    if (!more(self, value->number) || (pairs && !more(self, 2 * value->number))) {
        return 0;
    }
    if (value->what == TEXT || value->what == BYTES) {
        value->at = self->at;
        self->at += value->number;
    }
    return 1;
}

static int read_integer(Reader *self, Value *value, uint8_t head) {
    int size = 1 << (head & 3);
    EXPECT(read_sized(self, size, &value->number));
    uint64_t number = value->number;
    if (head < 0xD0) {
        value->what = UINT;
        value->shortest = size == 1 ? number > 127 : number >> (4 * size) != 0;
        return 1;
    }
    int unused = 64 - 8 * size;
    value->number = (uint64_t)((int64_t)(number << unused) >> unused);
    value->what = value->number >> 63 ? NEGATIVE : UINT;
    int64_t least = size == 1 ? -32 : -(1LL << (4 * size - 1));
    value->shortest = value->what == NEGATIVE && (int64_t)value->number < least;
    return 1;
}

/* Read a head above 0xBF and below 0xE0; 0 for what is not read here, or ends too early. */
static int read_long_head(Reader *self, Value *value, uint8_t head) {
    static const int kinds[] = {BYTES, TEXT, ARRAY, MAP};
    static const uint64_t shorter[] = {0, 31, 15, 15};
    uint64_t ignored;
    if (head == 0xC0 || head == 0xC2 || head == 0xC3) {
        *value = (Value){head == 0xC0 ? NIL : BOOL, 1, 0, NULL};
        return 1;
    }
    if (head == 0xCA || head == 0xCB) {
        *value = (Value){FLOAT, head == 0xCB, 0, NULL};
        return read_sized(self, head == 0xCB ? 8 : 4, &ignored);
    }
    if (head >= 0xCC && head <= 0xD3) {
        return read_integer(self, value, head);
    }
    int kind = head >= 0xC4 && head <= 0xC6 ? 0 : head >= 0xD9 && head <= 0xDB ? 1
             : head == 0xDC || head == 0xDD ? 2 : head == 0xDE || head == 0xDF ? 3 : -1;
    if (kind < 0) {
        return 0;
    }
    int size = kind == 0 ? 1 << (head - 0xC4) : kind == 1 ? 1 << (head - 0xD9) : head & 1 ? 4 : 2;
    EXPECT(read_sized(self, size, &value->number));
    value->what = kinds[kind];
    uint64_t below = size == 1 || (kind > 1 && size == 2) ? shorter[kind]
                   : size == 2 ? 255 : 65535;
    value->shortest = value->number > below || (kind == 0 && size == 1);
    return check_body(self, value);
}

/* Read a value's head, and text or bytes whole; 0 for what is not read here. */
static inline int read_value(Reader *self, Value *value) {
    if (self->at == self->end) {
        return 0;
    }
    uint8_t head = *self->at++;
    if (head < 0x80) {
        *value = (Value){UINT, 1, head, NULL};
        return 1;
    }
    if (head >= 0xE0) {
        *value = (Value){NEGATIVE, 1, (uint64_t)(int64_t)(int8_t)head, NULL};
        return 1;
    }
    if (head >= 0xC0) {
        return read_long_head(self, value, head);
    }
    int what = head >= 0xA0 ? TEXT : head >= 0x90 ? ARRAY : MAP;
    *value = (Value){what, 1, head & (what == TEXT ? 31 : 15), NULL};
    return check_body(self, value);
}

static int is_ascii(const Value *text) {
    uint8_t all = 0;
    for (uint64_t i = 0; i < text->number; i++) {
        all |= text->at[i];
    }
    return all < 0x80;
}

static int is_text(const Value *value, const char *text) {
    return value->what == TEXT && value->number == strlen(text) &&
           memcmp(value->at, text, value->number) == 0;
}

static int same_text(const Value *one, const Value *two) {
    return one->number == two->number && memcmp(one->at, two->at, one->number) == 0;
}

/* Pass over a value; 0 for what is not read here. `shortest` becomes 0 unless all of it is written as
 * msgspec writes it, and holds no map, which it might write in another order. */
static int skip(Reader *self, int depth, int *shortest) {
    Value value;
    if (depth > MOST_DEPTH || !read_value(self, &value)) {
        return 0;
    }
    *shortest &= value.shortest && value.what != MAP;
    if (value.what == TEXT) {
        return is_ascii(&value);
    }
    if (value.what != ARRAY && value.what != MAP) {
        return 1;
    }
    for (uint64_t i = 0; i < value.number; i++) {
        if (value.what == MAP) {
            Value key;
            if (!read_value(self, &key) || key.what != TEXT || !is_ascii(&key)) {
                return 0;
            }
        }
        EXPECT(skip(self, depth + 1, shortest));
    }
    return 1;
}

static int skip_any(Reader *self) {
    int shortest = 1;
    return skip(self, 0, &shortest);
}

/* Read a block hash: bytes count by their last eight. */
static int read_hash(Reader *self, uint64_t *hash) {
    Value value;
    EXPECT(read_value(self, &value));
    if (value.what == BYTES && value.number) {
        int size = value.number < 8 ? (int)value.number : 8;
        *hash = big_endian(value.at + value.number - size, size);
        return 1;
    }
    *hash = value.number;
    return value.what == UINT || value.what == NEGATIVE;
}

/* As many hashes as a list has; -1 with MemoryError set. */
static int read_hashes(EngineBatch *batch, Reader *self, EngineEvent *event) {
    Value list;
    if (!read_value(self, &list) || list.what != ARRAY) {
        return 0;
    }
    TRY(blocks_reserve(&batch->hashes, (Py_ssize_t)list.number));
    event->hashes = (Py_ssize_t)list.number;
    uint64_t *hashes = batch->hashes.items + batch->hashes.count;
    for (uint64_t i = 0; i < list.number; i++) {
        EXPECT(read_hash(self, hashes + i));
    }
    batch->hashes.count += event->hashes;
    return 1;
}

static inline int read_token(Reader *self, uint32_t *token) {
    Value value;
    if (self->end - self->at > 4 && (*self->at == 0xCD || *self->at == 0xCE)) { /* nearly all */
        uint32_t number;
        int size = *self->at == 0xCD ? 2 : 4; /* a vocabulary may be beyond 65,536: which one is a guess */
        memcpy(&number, self->at + 1, sizeof number);
        *token = __builtin_bswap32(number) >> (32 - 8 * size);
        self->at += 1 + size;
        return 1;
    }
    EXPECT(read_value(self, &value));
    *token = (uint32_t)value.number;
    return value.what == UINT && value.number <= UINT32_MAX;
}

/* The first of a pair is the token. */
static int read_pair(Reader *self, uint32_t *token) {
    Value pair;
    if (!read_value(self, &pair) || pair.what != ARRAY || !pair.number || !read_token(self, token)) {
        return 0;
    }
    for (uint64_t i = 1; i < pair.number; i++) {
        EXPECT(skip_any(self));
    }
    return 1;
}

static int read_tokens(EngineBatch *batch, Reader *self, EngineEvent *event) {
    Value list;
    if (!read_value(self, &list) || list.what != ARRAY) {
        return 0;
    }
    TRY(u32s_reserve(&batch->tokens, (Py_ssize_t)list.number));
    event->tokens = (Py_ssize_t)list.number;
    uint32_t *tokens = batch->tokens.items + batch->tokens.count;
    uint8_t first = list.number ? *self->at : 0;
    int pairs = (first & 0xF0) == 0x90 || first == 0xDC || first == 0xDD;
    for (uint64_t i = 0; i < list.number; i++) {
        if (!(pairs ? read_pair(self, tokens + i) : read_token(self, tokens + i))) {
            return 0;
        }
    }
    batch->tokens.count += event->tokens;
    return 1;
}

static int read_text(Reader *self, Value *text) {
    return read_value(self, text) &&
           (text->what == NIL || (text->what == TEXT && text->number <= MOST_TEXT && is_ascii(text)));
}

static int read_number(Reader *self, Value *number) {
    return read_value(self, number) &&
           (number->what == NIL || (number->what == UINT && number->number <= MOST_NUMBER));
}

/* Note where a value is, unless it is null. */
static int note_value(Reader *self, Reader *place) {
    place->at = *self->at == 0xC0 ? NULL : self->at;
    place->end = self->end;
    return skip_any(self);
}

static int read_parent(Reader *self, EngineEvent *event) {
    event->has_parent = *self->at != 0xC0;
    return event->has_parent ? read_hash(self, &event->parent) : skip_any(self);
}

static int read_locality(Reader *self, int *remote) {
    Value value;
    Reader peeked = *self;
    *remote = read_value(&peeked, &value) && is_text(&value, "REMOTE");
    return skip_any(self);
}

/* Read one field: 1, 0 for what is not read here, -1 with MemoryError set. */
static int read_field(EngineBatch *batch, Reader *self, Found *found, int field) {
    Value value;
    if (self->at == self->end || found->found & 1U << field) {
        return 0;
    }
    found->found |= 1U << field;
    switch (field) {
    case BLOCK_HASHES:
        return read_hashes(batch, self, &found->event);
    case TOKEN_IDS:
        return read_tokens(batch, self, &found->event);
    case PARENT:
        return read_parent(self, &found->event);
    case BLOCK_SIZE:
        if (!read_number(self, &value) || value.what == NIL) {
            return 0;
        }
        found->event.block_size = (long long)value.number;
        return 1;
    case GROUP:
        EXPECT(read_number(self, &value));
        found->event.group = value.what == NIL ? 0 : (long long)value.number;
        return 1;
    case LORA_ID:
        return read_number(self, &found->lora_id);
    case WINDOW:
        return read_number(self, &value);
    case LOOKAHEAD:
        return read_value(self, &value) && value.what == NIL;
    case LORA_NAME:
        return read_text(self, &found->lora_name);
    case MEDIUM:
        return read_text(self, &found->medium);
    case KIND:
        return read_text(self, &found->kind);
    case SALT:
        return read_text(self, &found->salt);
    case EXTRA_KEYS:
        return note_value(self, &found->extras);
    case MM_KEYS:
        return note_value(self, &found->mm);
    case LOCALITY:
        return read_locality(self, &found->remote);
    default:
        return skip_any(self);
    }
}

/* Return a digest of a list of `count` items that are written as msgspec writes them, never 0. */
static uint64_t digest(EngineBatch *batch, uint64_t count, const uint8_t *const *from,
                       const uint8_t *const *to, int spans) {
    uint8_t *at = batch->bytes;
    if (count < 16) {
        *at++ = 0x90 | (uint8_t)count;
    } else {
        int size = count < 65536 ? 2 : 4;
        *at++ = size == 2 ? 0xDC : 0xDD;
        for (int byte = size - 1; byte >= 0; byte--) {
            *at++ = (uint8_t)(count >> 8 * byte);
        }
    }
    for (int span = 0; span < spans; span++) {
        memcpy(at, from[span], (size_t)(to[span] - from[span]));
        at += to[span] - from[span];
    }
    uint64_t hash = xxh3_64(batch->bytes, (size_t)(at - batch->bytes), 0);
    return hash ? hash : 1;
}

/* Read the keys of one block; `salt` NULL: it is not looked for. */
static int read_key(EngineBatch *batch, Reader *self, const Value *lora, Value *salt, uint64_t *extra) {
    Reader start = *self;
    Value head, item;
    *extra = 0;
    EXPECT(read_value(self, &head));
    if (head.what == NIL) {
        return 1;
    }
    uint64_t count = 1, texts = 0, left = 0;
    int shortest = 1;
    if (head.what == ARRAY) {
        count = head.number;
    } else {
        *self = start;
    }
    const uint8_t *from[2] = {self->at, self->at}, *to[2] = {self->at, self->at};
    for (uint64_t i = 0; i < count; i++) {
        const uint8_t *began = self->at;
        Reader peeked = *self;
        EXPECT(read_value(&peeked, &item) && skip(self, 0, &shortest));
        int text = item.what == TEXT;
        if (i == 0 && text && lora->what == TEXT && same_text(&item, lora)) {
            from[0] = to[0] = from[1] = to[1] = self->at;
            continue;
        }
        left++;
        if (text && salt != NULL && ++texts == 1) {
            *salt = item;
            to[0] = began;
            from[1] = self->at;
        }
        to[1] = self->at;
    }
    if (salt != NULL && texts != 1) {
        *salt = (Value){.what = NIL};
        from[1] = from[0];
        to[0] = from[0];
    } else if (salt != NULL) {
        left--;
    }
    if (left) {
        *extra = digest(batch, left, from, to, 2);
    }
    return shortest || !left;
}

static int reserve_bytes(EngineBatch *self, Py_ssize_t size) {
    if (size <= self->byte_room) {
        return 0;
    }
    TRY(RAW_RESIZE(self->bytes, size));
    self->byte_room = size;
    return 0;
}

/* Read the digests of a list of keys; 0 for what is not read here, -1 with MemoryError set. */
static int read_extras(EngineBatch *batch, Reader self, Found *found, const Value *lora, int first,
                       Value *salt) {
    Reader list = self;
    Value head;
    EngineEvent *event = &found->event;
    if (!read_value(&self, &head) || head.what != ARRAY) {
        return 0;
    }
    TRY(blocks_reserve(&batch->extras, event->hashes));
    TRY(reserve_bytes(batch, self.end - self.at + 8));
    uint64_t *extras = batch->extras.items + batch->extras.count, any = 0;
    if (head.number != (uint64_t)event->hashes) {
        const uint8_t *from = self.at;
        int shortest = 1;
        if (!skip(&list, 0, &shortest) || (head.number && !shortest)) {
            return 0;
        }
        any = head.number ? digest(batch, head.number, &from, (const uint8_t *const[]){list.at}, 1) : 0;
        for (Py_ssize_t i = 0; i < event->hashes; i++) {
            extras[i] = any;
        }
    } else {
        for (Py_ssize_t i = 0; i < event->hashes; i++) {
            EXPECT(read_key(batch, &self, lora, first && i == 0 ? salt : NULL, extras + i));
            any |= extras[i];
        }
    }
    event->first_extra = batch->extras.count;
    event->extras = any ? event->hashes : 0;
    return 1;
}

static PyObject *ascii(const Value *text) {
    return PyUnicode_DecodeASCII((const char *)text->at, (Py_ssize_t)text->number, NULL);
}

/* Find the root of a namespace: ROOT_HASH without any name or secret. -1 with an error set. */
static int find_root(const EngineNames *names, const Found *found, const Value *salt, uint64_t *root) {
    const Value *name = &found->lora_name, *number = &found->lora_id;
    int named = (name->what == TEXT && name->number) || (name->what == NIL && number->what == UINT);
    int salted = salt->what == TEXT && salt->number;
    *root = 0;
    if (!named && !salted && !names->secret) {
        return 0;
    }
    PyObject *lora = !named ? PyUnicode_FromString("")
                     : name->what == TEXT ? ascii(name)
                     : PyUnicode_FromFormat("#%llu", (unsigned long long)number->number);
    PyObject *text = salted ? ascii(salt) : PyUnicode_FromString("");
    int failed = lora == NULL || text == NULL || engine_root(names, lora, text, root) < 0;
    XDECREF_ALL(lora, text);
    return failed ? -1 : 0;
}

/* Look up a medium in capitals; -1 with an error set. */
static int find_tier(const EngineNames *names, const Found *found, int *tier) {
    char capitals[MOST_TEXT];
    const Value *medium = &found->medium;
    *tier = found->remote ? names->farthest : 0;
    if (found->remote || medium->what == NIL) {
        return 0;
    }
    for (uint64_t i = 0; i < medium->number; i++) {
        uint8_t letter = medium->at[i];
        capitals[i] = (char)(letter >= 'a' && letter <= 'z' ? letter - 32 : letter);
    }
    PyObject *name = PyUnicode_DecodeASCII(capitals, (Py_ssize_t)medium->number, NULL);
    PyObject *known = name == NULL ? NULL : PyDict_GetItemWithError(names->tiers, name);
    Py_XDECREF(name);
    *tier = known == NULL ? names->farthest : (int)PyLong_AsLong(known);
    return PyErr_Occurred() ? -1 : 0;
}

static int find_kind(const EngineNames *names, const Found *found, int *full) {
    PyObject *kind = found->kind.what == NIL ? Py_NewRef(Py_None) : ascii(&found->kind);
    *full = kind == NULL ? -1 : PySet_Contains(names->full, kind);
    Py_XDECREF(kind);
    return *full < 0 ? -1 : 0;
}

/* Make a store of what was found: 1, 0 for what is not read here, -1 with an error set. */
static int finish_stored(EngineBatch *batch, const EngineNames *names, Found *found) {
    EngineEvent *event = &found->event;
    static const Value nothing = {.what = NIL};
    unsigned needed = 1U << BLOCK_HASHES | 1U << BLOCK_SIZE | 1U << TOKEN_IDS;
    if ((found->found & needed) != needed ||
        (event->tokens && (unsigned long long)event->tokens !=
                              (unsigned long long)event->hashes * (unsigned long long)event->block_size)) {
        return 0;
    }
    Value key_salt = nothing;
    const Value *lora = &found->lora_name;
    Value number_lora;
    char number[24];
    if (lora->what == NIL && found->lora_id.what == UINT) {
        number_lora = (Value){.what = TEXT, .at = (const uint8_t *)number};
        number_lora.number = (uint64_t)snprintf(number, sizeof number, "#%llu",
                                                (unsigned long long)found->lora_id.number);
        lora = &number_lora;
    }
    int read = 1;
    if (found->extras.at != NULL) {
        read = read_extras(batch, found->extras, found, lora, !event->has_parent, &key_salt);
    }
    if (read > 0 && found->mm.at != NULL) {
        read = read_extras(batch, found->mm, found, &nothing, 0, NULL);
    }
    if (read <= 0) {
        return read;
    }
    batch->extras.count += event->extras;
    const Value *salt = found->salt.what == NIL ? &key_salt : &found->salt;
    return find_root(names, found, salt, &event->root) < 0 || find_kind(names, found, &event->full) < 0
               ? -1
               : 1;
}

static int finish(EngineBatch *batch, const EngineNames *names, Found *found) {
    EngineEvent *event = &found->event;
    if (found->tag == TAGS) {
        batch->unknown_tags++;
        return 1;
    }
    event->what = found->tag;
    if (found->tag == TAG_REMOVED && !(found->found & 1U << BLOCK_HASHES)) {
        return 0;
    }
    int read = found->tag == TAG_STORED ? finish_stored(batch, names, found) : 1;
    TRY_IF(read > 0 && found->tag != TAG_CLEARED, find_tier(names, found, &event->tier));
    EngineEvent *added = read > 0 ? engine_batch_add(batch, event->what) : NULL;
    if (added == NULL) {
        return read > 0 ? -1 : read;
    }
    *added = *event;
    return 1;
}

static int read_tag(const Value *text, int *tag) {
    if (text->what != TEXT || text->number > MOST_TEXT || !is_ascii(text)) {
        return 0;
    }
    for (*tag = 0; *tag < TAGS && !is_text(text, tag_names[*tag]); (*tag)++) {
    }
    return 1;
}

static int read_array(EngineBatch *batch, Reader *self, Found *found, uint64_t count) {
    Value tag;
    EXPECT(count && read_value(self, &tag) && read_tag(&tag, &found->tag));
    uint64_t places = found->tag == TAGS ? 0 : tag_places[found->tag];
    for (uint64_t i = 0; i < count - 1; i++) {
        int read = i < places ? read_field(batch, self, found, tag_order[found->tag][i]) : skip_any(self);
        if (read <= 0) {
            return read;
        }
    }
    if (found->tag != TAGS && count - 1 > places) {
        batch->unknown_fields += (long long)(count - 1 - places);
    }
    return 1;
}

/* Note the name of a field nobody knows; 0 if it was there already. */
static int note_unknown(Found *found, const Value *name) {
    if (found->unknown_count == MOST_UNKNOWN || !is_ascii(name)) {
        return 0;
    }
    for (uint64_t i = 0; i < found->unknown_count; i++) {
        if (same_text(found->unknown + i, name)) {
            return 0;
        }
    }
    found->unknown[found->unknown_count++] = *name;
    return 1;
}

static int read_pair_of_map(EngineBatch *batch, Reader *self, Found *found) {
    Value name, tag;
    if (!read_value(self, &name) || name.what != TEXT) {
        return 0;
    }
    int field = 0;
    while (field < FIELDS && !is_text(&name, field_names[field])) {
        field++;
    }
    if (field == FIELDS) {
        return note_unknown(found, &name) && skip_any(self);
    }
    if (field != TYPE) {
        return read_field(batch, self, found, field);
    }
    if (found->found & 1U << TYPE) {
        return 0;
    }
    found->found |= 1U << TYPE;
    return read_value(self, &tag) && read_tag(&tag, &found->tag);
}

static int read_map(EngineBatch *batch, Reader *self, Found *found, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        int read = read_pair_of_map(batch, self, found);
        if (read <= 0) {
            return read;
        }
    }
    if (!(found->found & 1U << TYPE)) {
        return 0;
    }
    if (found->tag != TAGS) {
        unsigned strange = found->found & ~tag_fields[found->tag];
        batch->unknown_fields += (long long)found->unknown_count + __builtin_popcount(strange);
    }
    return 1;
}

static int read_event(EngineBatch *batch, const EngineNames *names, Reader *self) {
    Value head;
    Found found = {.tag = TAGS};
    found.event.first_hash = batch->hashes.count;
    found.event.first_token = batch->tokens.count;
    if (!read_value(self, &head) || (head.what != ARRAY && head.what != MAP)) {
        return 0;
    }
    int read = head.what == ARRAY ? read_array(batch, self, &found, head.number)
                                  : read_map(batch, self, &found, head.number);
    return read > 0 ? finish(batch, names, &found) : read;
}

int engine_batch_read(EngineBatch *self, const EngineNames *names, const uint8_t *data, Py_ssize_t size) {
    Reader reader = {data, data + size};
    Value envelope, time, events, rank;
    self->hashes.count = self->tokens.count = self->extras.count = self->count = 0;
    self->unknown_fields = self->unknown_tags = 0;
    if (!read_value(&reader, &envelope) || envelope.what != ARRAY || envelope.number < 2 ||
        !read_value(&reader, &time) || (time.what != FLOAT && time.what != UINT && time.what != NEGATIVE) ||
        !read_value(&reader, &events) || events.what != ARRAY) {
        return 0;
    }
    for (uint64_t i = 0; i < events.number; i++) {
        int read = read_event(self, names, &reader);
        if (read <= 0) {
            return read;
        }
    }
    if (envelope.number > 2 && (!read_value(&reader, &rank) || (rank.what != NIL && rank.what != UINT &&
                                                               rank.what != NEGATIVE))) {
        return 0;
    }
    for (uint64_t i = 3; i < envelope.number; i++) {
        EXPECT(skip_any(&reader));
        self->unknown_fields++;
    }
    return reader.at == reader.end;
}
