/* One pass over a request body: the fields that routing reads, all of it checked. */
#include "bodies/json_text.h"
#include "bodies/scan.h"
#include <stddef.h>

/* `kvmesh.bounds`. A model's name has at most so many characters: here, bytes. */
#define MAX_NAME 512
#define MAX_TOKENS INT32_MAX
#define MAX_CHOICES (1 << 15)
#define MAX_PRIORITY (1 << 15)

/* `kvmesh.core.chat.retention`, in seconds. */
#define SHORTLY 300
#define LONGEST 3600

typedef enum {
    FLAG,    /* bool or null */
    LIMIT,   /* tokens or null */
    CHOICES,
    PRIORITY,
    NAME,    /* string of at most MAX_NAME characters, or null */
    TEXT,    /* string or null */
    VALUE,   /* anything, null as if absent */
    SETTING, /* anything, null too */
    MESSAGES,
    PROMPT,
    RETENTION, /* anything */
    REFUSED, /* but for null */
    UNUSUAL, /* refused but for null and false */
} Kind;

typedef struct {
    const char *name;
    Kind kind;
    size_t offset; /* in Found */
} Field;

/* The scan, and the three limits of which one counts. */
typedef struct {
    Scan scan;
    int64_t max_completion_tokens, max_output_tokens, max_tokens;
} Found;

#define AT(field) offsetof(Found, field)

/* The fields of a body by the length of their names. */
static const Field one[] = {{"n", CHOICES, 0}, {NULL, 0, 0}};
static const Field four[] = {
    {"user", TEXT, AT(scan.user)},
    {"echo", UNUSUAL, 0},
    {NULL, 0, 0},
};
static const Field five[] = {
    {"model", NAME, AT(scan.model)},
    {"tools", VALUE, AT(scan.tools)},
    {"input", VALUE, AT(scan.input)},
    {"nvext", REFUSED, 0},
    {NULL, 0, 0},
};
static const Field six[] = {
    {"stream", FLAG, 0},
    {"prompt", PROMPT, 0},
    {"system", VALUE, AT(scan.system)},
    {"kvmesh", REFUSED, 0},
    {NULL, 0, 0},
};
static const Field seven[] = {{"best_of", UNUSUAL, 0}, {NULL, 0, 0}};
static const Field eight[] = {
    {"messages", MESSAGES, 0},
    {"priority", PRIORITY, 0},
    {NULL, 0, 0},
};
static const Field nine[] = {
    {"input_ids", VALUE, AT(scan.input_ids)},
    {"documents", VALUE, AT(scan.documents)},
    {"lora_path", TEXT, AT(scan.lora_path)},
    {"extra_key", REFUSED, 0},
    {NULL, 0, 0},
};
static const Field ten[] = {
    {"max_tokens", LIMIT, AT(max_tokens)},
    {"cache_salt", TEXT, AT(scan.cache_salt)},
    {NULL, 0, 0},
};
static const Field eleven[] = {{"tool_choice", VALUE, AT(scan.tool_choice)}, {NULL, 0, 0}};
static const Field twelve[] = {{"instructions", VALUE, AT(scan.instructions)}, {NULL, 0, 0}};
static const Field thirteen[] = {
    {"prompt_embeds", UNUSUAL, 0},
    {"chat_template", UNUSUAL, 0},
    {NULL, 0, 0},
};
static const Field fifteen[] = {
    {"prompt_logprobs", REFUSED, 0},
    {"use_beam_search", UNUSUAL, 0},
    {NULL, 0, 0},
};
static const Field sixteen[] = {
    {"reasoning_effort", VALUE, AT(scan.reasoning_effort)},
    {"prompt_cache_key", TEXT, AT(scan.prompt_cache_key)},
    {NULL, 0, 0},
};
static const Field seventeen[] = {
    {"max_output_tokens", LIMIT, AT(max_output_tokens)},
    {NULL, 0, 0},
};
static const Field eighteen[] = {{"add_special_tokens", REFUSED, 0}, {NULL, 0, 0}};
static const Field twenty_one[] = {
    {"max_completion_tokens", LIMIT, AT(max_completion_tokens)},
    {"add_generation_prompt", SETTING, AT(scan.add_generation_prompt)},
    {NULL, 0, 0},
};
static const Field twenty_two[] = {
    {"continue_final_message", SETTING, AT(scan.continue_final_message)},
    {"truncate_prompt_tokens", REFUSED, 0},
    {"prompt_cache_retention", RETENTION, 0},
    {NULL, 0, 0},
};
static const Field twenty[] = {
    {"chat_template_kwargs", VALUE, AT(scan.chat_template_kwargs)},
    {"previous_response_id", REFUSED, 0},
    {NULL, 0, 0},
};
static const Field *const by_length[23] = {
    [1] = one,        [4] = four,       [5] = five,        [6] = six,
    [7] = seven,      [8] = eight,      [9] = nine,        [10] = ten,
    [11] = eleven,    [12] = twelve,    [13] = thirteen,   [15] = fifteen,
    [16] = sixteen,   [17] = seventeen, [18] = eighteen,   [20] = twenty,
    [21] = twenty_one, [22] = twenty_two,
};

static const Field *find_field(const JsonWalk *walk) {
    if (walk->key_size >= (long)(sizeof by_length / sizeof *by_length)) {
        return NULL;
    }
    const Field *field = by_length[walk->key_size];
    while (field != NULL && field->name != NULL) {
        if (!memcmp(field->name, walk->key, (size_t)walk->key_size)) {
            return field;
        }
        field++;
    }
    return NULL;
}

static int is_null(const uint8_t *at, const uint8_t *end) {
    return json_is(at, end, "null", 4);
}

/* Read a whole number of at most `most` digits; return behind it, or NULL. Zero has no sign. */
static const uint8_t *read_number(const uint8_t *at, const uint8_t *end, int most, int64_t *value) {
    int negative = *at == '-';
    const uint8_t *start = at += negative;
    int64_t number = 0;
    while (at < end && *at >= '0' && *at <= '9' && at - start <= most) {
        number = number * 10 + (*at++ - '0');
    }
    int strange = at == start || at - start > most || (*start == '0' && (at - start > 1 || negative));
    if (strange || (at < end && (*at == '.' || (*at | 0x20) == 'e'))) {
        return NULL;
    }
    *value = negative ? -number : number;
    return at;
}

static const uint8_t *read_limit(const uint8_t *at, const uint8_t *end, int64_t *limit) {
    if (is_null(at, end)) {
        *limit = -1;
        return at + 4;
    }
    return *at == '-' ? NULL : read_number(at, end, 15, limit);
}

static const uint8_t *read_choices(const uint8_t *at, const uint8_t *end, int32_t *choices) {
    int64_t number = 1;
    if (is_null(at, end)) {
        at += 4;
    } else if ((at = read_number(at, end, 9, &number)) == NULL || number < 1) {
        return NULL;
    }
    *choices = number < MAX_CHOICES ? (int32_t)number : MAX_CHOICES;
    return at;
}

static const uint8_t *read_priority(const uint8_t *at, const uint8_t *end, int32_t *urgency) {
    int64_t number = 0;
    if (is_null(at, end)) {
        at += 4;
    } else if ((at = read_number(at, end, 9, &number)) == NULL) {
        return NULL;
    }
    number = number > MAX_PRIORITY ? MAX_PRIORITY : number;
    *urgency = (int32_t)-(number < -MAX_PRIORITY ? -MAX_PRIORITY : number);
    return at;
}

static const uint8_t *read_flag(const uint8_t *at, const uint8_t *end, int *flag) {
    *flag = json_is(at, end, "true", 4);
    if (*flag || is_null(at, end)) {
        return at + 4;
    }
    return json_is(at, end, "false", 5) ? at + 5 : NULL;
}

static const uint8_t *read_string(const uint8_t *at, const uint8_t *end, ScanText *text) {
    int found = 0;
    const uint8_t *close = json_string(at + 1, end, &found);
    NEED_OR_NULL(close);
    *text = (ScanText){at + 1, close - at - 1, (found & JSON_ESCAPE) != 0, !(found & JSON_WIDE)};
    return close + 1;
}

static const uint8_t *read_text(const uint8_t *at, const uint8_t *end, ScanText *text) {
    if (is_null(at, end)) {
        *text = (ScanText){0};
        return at + 4;
    }
    return *at == '"' ? read_string(at, end, text) : NULL;
}

static const uint8_t *read_value(const uint8_t *at, const uint8_t *end, ScanSpan *span) {
    int found = 0;
    const uint8_t *behind = json_value(at, end, SCAN_DEPTH - 1, &found);
    *span = (ScanSpan){at, behind == NULL ? 0 : behind - at};
    return behind;
}

/* Read one message, behind its brace; `*plain` is cleared when it is more than role and content. */
static const uint8_t *read_message(const uint8_t *at, const uint8_t *end, int *plain) {
    JsonWalk walk = json_walk(at, end);
    int found = 0, roles = 0, contents = 0, others = 0, more;
    while ((more = json_member(&walk, &found)) > 0) {
        if (walk.escaped) {
            return NULL;
        }
        if (*walk.at == '"') {
            roles += JSON_KEY_IS(&walk, "role");
            contents += JSON_KEY_IS(&walk, "content");
        }
        others++;
        walk.at = json_value(walk.at, end, SCAN_DEPTH - 3, &found);
        if (walk.at == NULL || found & JSON_STRANGE) {
            return NULL;
        }
    }
    *plain &= roles == 1 && contents == 1 && others == 2;
    return more < 0 ? NULL : walk.at;
}

static const uint8_t *read_messages(const uint8_t *at, const uint8_t *end, Scan *scan) {
    const uint8_t *start = at;
    scan->message_count = 0;
    if (*at != '[') {
        return NULL;
    }
    JsonWalk walk = json_walk(at + 1, end);
    int more;
    scan->plain = 1;
    while ((more = json_item(&walk)) > 0) {
        if (*walk.at != '{') {
            return NULL;
        }
        walk.at = read_message(walk.at + 1, end, &scan->plain);
        NEED_OR_NULL(walk.at);
        scan->message_count++;
    }
    scan->messages = (ScanSpan){start, walk.at - start};
    return more < 0 || !scan->message_count ? NULL : walk.at;
}

static const uint8_t *read_prompt(const uint8_t *at, const uint8_t *end, Scan *scan) {
    scan->prompt = (ScanText){0};
    scan->prompt_value = (ScanSpan){NULL, 0};
    if (is_null(at, end)) {
        return at + 4;
    }
    const uint8_t *behind = *at == '"' ? read_string(at, end, &scan->prompt)
                                       : read_value(at, end, &scan->prompt_value);
    scan->prompt_value = (ScanSpan){at, behind == NULL ? 0 : behind - at};
    return behind;
}

/* Read how long a prompt shall be kept. What says nothing of that is the engine's to judge. */
static const uint8_t *read_retention(const uint8_t *at, const uint8_t *end, int *keep_s) {
    ScanSpan said;
    *keep_s = 0;
    const uint8_t *behind = read_value(at, end, &said);
    NEED_OR_NULL(behind);
    if (json_is(at, end, "\"24h\"", 5)) {
        *keep_s = LONGEST;
    } else if (json_is(at, end, "\"in-memory\"", 11) || json_is(at, end, "\"in_memory\"", 11)) {
        *keep_s = SHORTLY;
    }
    return behind;
}

static const uint8_t *read_field(const Field *field, const uint8_t *at, const uint8_t *end,
                                 Found *found) {
    Scan *scan = &found->scan;
    void *place = (char *)found + field->offset;
    switch (field->kind) {
    case FLAG:
        return read_flag(at, end, &scan->stream);
    case LIMIT:
        return read_limit(at, end, place);
    case CHOICES:
        return read_choices(at, end, &scan->choices);
    case PRIORITY:
        return read_priority(at, end, &scan->urgency);
    case NAME:
        at = read_text(at, end, place);
        return scan->model.size > MAX_NAME ? NULL : at;
    case TEXT:
        return read_text(at, end, place);
    case MESSAGES:
        return read_messages(at, end, scan);
    case PROMPT:
        return read_prompt(at, end, scan);
    case RETENTION:
        return read_retention(at, end, &scan->keep_s);
    case UNUSUAL:
        if (json_is(at, end, "false", 5)) {
            return at + 5;
        }
        /* fall through */
    case REFUSED:
        return is_null(at, end) ? at + 4 : NULL;
    case VALUE:
        if (is_null(at, end)) {
            *(ScanSpan *)place = (ScanSpan){NULL, 0};
            return at + 4;
        }
        /* fall through */
    case SETTING:
        return read_value(at, end, place);
    }
    return NULL;
}

static int32_t limit_of(const Found *found) {
    int64_t limit = found->max_completion_tokens;
    if (limit < 0) {
        limit = found->max_output_tokens < 0 ? found->max_tokens : found->max_output_tokens;
    }
    return limit < MAX_TOKENS ? (int32_t)limit : MAX_TOKENS;
}

int scan_body(const char *body, Py_ssize_t size, Scan *out) {
    const uint8_t *at = (const uint8_t *)body, *end = at + size;
    Found found = {.scan = {.body = at, .size = size, .choices = 1},
                   .max_completion_tokens = -1, .max_output_tokens = -1, .max_tokens = -1};
    at = json_blanks(at, end);
    if (at == end || *at != '{') {
        return 0;
    }
    JsonWalk walk = json_walk(at + 1, end);
    int flags = 0, more;
    while ((more = json_member(&walk, &flags)) > 0) {
        if (walk.escaped) {
            return 0;
        }
        const Field *field = find_field(&walk);
        walk.at = field == NULL ? json_value(walk.at, end, SCAN_DEPTH - 1, &flags)
                                : read_field(field, walk.at, end, &found);
        if (walk.at == NULL) {
            return 0;
        }
    }
    if (more < 0 || json_blanks(walk.at, end) != end) {
        return 0;
    }
    found.scan.limit = limit_of(&found);
    *out = found.scan;
    return 1;
}
