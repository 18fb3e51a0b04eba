/* The byte tokenizer's ids straight from a scanned body: `core.prompts.byte_tokenizer`.
 *
 * The body was scanned, so strings and brackets are as they should be; what is not checked by then
 * (the shape of a tool, of a content part) is checked here, and left to the tokenizer if it differs.
 */
#include "bodies/json_copy.h"
#include "bodies/scan.h"

enum { TOOLS_ID = 256, END_ID, FIELD_ID, OTHER_ROLE_ID, SYSTEM_ID, DEVELOPER_ID, USER_ID,
       ASSISTANT_ID, TOOL_ID };

/* What a message may have more ids than bytes: `,"name":""` is FIELD_ID and `["name",""]`. */
#define MARKS_A_MESSAGE 12
/* Room for so many ids is kept for the next call. */
#define KEPT_IDS (1 << 20)
/* Marks of a chat as a whole, and what a copy may touch behind the last id. */
#define SLACK (16 + COPY_SLACK)
static int reserve(ScanTokens *tokens, Py_ssize_t room) {
    tokens->count = 0;
    if (room <= tokens->room && (tokens->room <= KEPT_IDS || room > KEPT_IDS)) {
        return 0;
    }
    PyMem_RawFree(tokens->ids);
    tokens->room = 0;
    tokens->ids = (size_t)room > PY_SSIZE_T_MAX / sizeof *tokens->ids
                      ? NULL
                      : PyMem_RawMalloc((size_t)room * sizeof *tokens->ids);
    NEED(tokens->ids);
    tokens->room = room;
    return 0;
}

void scan_release(ScanTokens *tokens) {
    PyMem_RawFree(tokens->ids);
    *tokens = (ScanTokens){NULL, 0, 0};
}

/* Whether a value could be decoded: whether it has no number that is perhaps out of range. */
static int is_plain(ScanSpan span) {
    int found = 0;
    json_value(span.at, span.at + span.size, SCAN_DEPTH, &found);
    return !(found & JSON_STRANGE);
}

/* Whether a list has nothing but objects whose `function`, if any, is an object. */
static int are_calls(ScanSpan span) {
    int found = 0;
    JsonWalk walk = json_walk(span.at + 1, span.at + span.size);
    while (json_item(&walk) > 0) {
        if (*walk.at != '{') {
            return 0;
        }
        JsonWalk inner = json_walk(walk.at + 1, walk.end);
        int good = 1;
        while (json_member(&inner, &found) > 0) {
            if (inner.escaped) {
                return 0;
            }
            if (JSON_KEY_IS(&inner, "function")) {
                good = *inner.at == '{' || *inner.at == 'n';
            }
            inner.at = json_value(inner.at, inner.end, SCAN_DEPTH, &found);
        }
        if (!good) {
            return 0;
        }
        walk.at = inner.at;
    }
    return 1;
}

/* What `ByteTokenizer` reads of a message: values as they stand, NULL when absent. */
typedef struct {
    ScanSpan role, content, name, calls, call_id;
} Message;

static const uint8_t *read_members(const uint8_t *at, const uint8_t *end, Message *message) {
    JsonWalk walk = json_walk(at, end);
    int found = 0;
    *message = (Message){{0}};
    while (json_member(&walk, &found) > 0) {
        const uint8_t *behind = json_value(walk.at, end, SCAN_DEPTH, &found);
        ScanSpan value = {walk.at, behind - walk.at};
        if (JSON_KEY_IS(&walk, "role")) {
            message->role = value;
        } else if (JSON_KEY_IS(&walk, "content")) {
            message->content = value;
        } else if (JSON_KEY_IS(&walk, "name")) {
            message->name = value;
        } else if (JSON_KEY_IS(&walk, "tool_calls")) {
            message->calls = value;
        } else if (JSON_KEY_IS(&walk, "tool_call_id")) {
            message->call_id = value;
        }
        walk.at = behind;
    }
    return walk.at;
}

static int is_known(const uint8_t *at, long size, const char *name) {
    return size == (long)strlen(name) && !memcmp(at, name, (size_t)size);
}

/* Write a role's marker: its string from behind the quote to behind the closing one; NULL for one
 * that is written with escapes, which may be a role that has a marker of its own. */
static const uint8_t *copy_role(const uint8_t *at, const uint8_t *end, uint32_t **out) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
    int found = 0;
    const uint8_t *close = json_string(at, end, &found);
    if (found & JSON_ESCAPE) {
        return NULL;
    }
    for (uint32_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        if (is_known(at, close - at, roles[i])) {
            *(*out)++ = SYSTEM_ID + i;
            return close + 1;
        }
    }
    *(*out)++ = OTHER_ROLE_ID;
    *out = write_bytes(*out, at, close - at);
    *(*out)++ = FIELD_ID;
    return close + 1;
}

/* Write the text of a content part that is an object: 0 when it is media, or odd. */
static int copy_part(Copy *copy) {
    static const char *const kinds[] = {"text", "input_text", "output_text", "refusal", "thinking"};
    static const char *const keys[] = {"text", "text", "text", "refusal", "thinking"};
    JsonWalk walk = json_walk(copy->at + 1, copy->end);
    const uint8_t *values[3] = {NULL, NULL, NULL}, *kind = NULL; /* by key: text, refusal, thinking */
    int found = 0;
    while (json_member(&walk, &found) > 0) {
        if (walk.escaped) {
            return 0;
        }
        if (JSON_KEY_IS(&walk, "type")) {
            kind = walk.at;
        }
        for (int i = 2; i < 5; i++) {
            if (is_known(walk.key, walk.key_size, keys[i])) {
                values[i - 2] = walk.at;
            }
        }
        walk.at = json_value(walk.at, walk.end, SCAN_DEPTH, &found);
    }
    int chosen = kind == NULL ? 0 : 5;
    for (int i = 0; kind != NULL && *kind == '"' && i < 5; i++) {
        const uint8_t *close = json_plain(kind + 1, copy->end);
        if (*close == '"' && is_known(kind + 1, close - kind - 1, kinds[i])) {
            chosen = i;
        }
    }
    const uint8_t *text = chosen == 5 ? NULL : values[chosen < 3 ? 0 : chosen - 2];
    if (text == NULL || *text != '"') {
        return 0;
    }
    copy->at = text + 1;
    copy_text(copy);
    copy->at = walk.at;
    return 1;
}

/* Write a content that is a list of parts, a line each. */
static int copy_parts(Copy *copy) {
    JsonWalk walk = json_walk(copy->at + 1, copy->end);
    for (int first = 1; json_item(&walk) > 0; first = 0) {
        if (!first) {
            *copy->out++ = '\n';
        }
        copy->at = walk.at;
        if (*walk.at == '"') {
            copy->at++;
            copy_text(copy);
        } else if (*walk.at != '{' || !copy_part(copy)) {
            return 0;
        }
        walk.at = copy->at;
    }
    return 1;
}

static int copy_content(Copy *copy, ScanSpan content) {
    copy->at = content.at;
    switch (content.at == NULL ? 'n' : *content.at) {
    case '"':
        copy->at++;
        copy_text(copy);
        return 1;
    case '[':
        return copy_parts(copy);
    case 'n':
        return 1;
    default:
        return 0;
    }
}

/* Write `["name",value]` behind its mark; nothing for a value that says nothing. */
static int copy_field(Copy *copy, const char *opening, ScanSpan value) {
    if (value.at == NULL || *value.at == 'n') {
        return 1;
    }
    int is_text = *value.at == '"';
    if (!is_text && *value.at != '[') {
        return 0;
    }
    const uint8_t *inside = json_blanks(value.at + 1, copy->end);
    if (is_text ? value.size == 2 : *inside == ']') {
        return 1;
    }
    *copy->out++ = FIELD_ID;
    copy->out = write_bytes(copy->out, opening, (Py_ssize_t)strlen(opening));
    copy->at = value.at;
    EXPECT(copy_json(copy));
    *copy->out++ = ']';
    return 1;
}

/* Write a message of any fields, but for its end: behind it, or NULL. */
static const uint8_t *copy_message(const uint8_t *at, Copy *copy) {
    Message message;
    const uint8_t *behind = read_members(at, copy->end, &message);
    if (message.role.at == NULL) {
        *copy->out++ = OTHER_ROLE_ID;
        *copy->out++ = FIELD_ID;
    } else if (*message.role.at != '"' ||
               copy_role(message.role.at + 1, copy->end, &copy->out) == NULL) {
        return NULL;
    }
    if (message.calls.at != NULL && *message.calls.at != 'n' &&
        (*message.calls.at != '[' || !are_calls(message.calls))) {
        return NULL;
    }
    /* A name or an id of another type than text is printed as JSON, too: left to the tokenizer. */
    if ((message.name.at != NULL && *message.name.at == '[') ||
        (message.call_id.at != NULL && *message.call_id.at == '[')) {
        return NULL;
    }
    int good = copy_content(copy, message.content) &&
               copy_field(copy, "[\"name\",", message.name) &&
               copy_field(copy, "[\"tool_calls\",", message.calls) &&
               copy_field(copy, "[\"tool_call_id\",", message.call_id);
    return good ? behind : NULL;
}

/* Write a message that is a role and then a content, both strings, in one go: behind it, or NULL
 * with `copy` unchanged when it is anything else. */
static const uint8_t *copy_usual(const uint8_t *at, Copy *copy) {
    JsonWalk walk = json_walk(at, copy->end);
    Copy try = *copy;
    int found = 0;
    if (json_member(&walk, &found) <= 0 || !JSON_KEY_IS(&walk, "role") || *walk.at != '"') {
        return NULL;
    }
    walk.at = copy_role(walk.at + 1, copy->end, &try.out);
    if (walk.at == NULL || json_member(&walk, &found) <= 0 || !JSON_KEY_IS(&walk, "content") || *walk.at != '"') {
        return NULL;
    }
    try.at = walk.at + 1;
    copy_text(&try);
    walk.at = try.at;
    if (json_member(&walk, &found) != 0) {
        return NULL;
    }
    *copy = try;
    return walk.at;
}

static int copy_messages(const Scan *scan, int continued, Copy *copy) {
    JsonWalk walk = json_walk(scan->messages.at + 1, copy->end);
    for (Py_ssize_t left = scan->message_count; json_item(&walk) > 0; left--) {
        const uint8_t *behind = copy_usual(walk.at + 1, copy);
        if (behind == NULL) {
            behind = copy_message(walk.at + 1, copy);
        }
        if (behind == NULL) {
            return 0;
        }
        walk.at = behind;
        if (left > 1 || !continued) {
            *copy->out++ = END_ID;
        }
    }
    return 1;
}

/* Whether a list of objects, or nothing, is what the field has; `*some` when there is any. */
static int is_list(ScanSpan span, int *some) {
    *some = 0;
    if (span.at == NULL) {
        return 1;
    }
    int found = 0;
    JsonWalk walk = json_walk(span.at + 1, span.at + span.size);
    if (*span.at != '[') {
        return 0;
    }
    while (json_item(&walk) > 0) {
        *some = 1;
        if (*walk.at != '{') {
            return 0;
        }
        walk.at = json_value(walk.at, walk.end, SCAN_DEPTH, &found);
    }
    return 1;
}

/* Write the tools and documents, which come first. */
static int copy_tools(const Scan *scan, Copy *copy) {
    int tools, documents;
    if (!is_list(scan->tools, &tools) || !is_list(scan->documents, &documents) ||
        (tools && !are_calls(scan->tools))) {
        return 0;
    }
    if (!tools && !documents) {
        return 1;
    }
    *copy->out++ = TOOLS_ID;
    *copy->out++ = '[';
    for (int i = 0; i < 2; i++) {
        copy->at = i ? scan->documents.at : scan->tools.at;
        if (!(i ? documents : tools)) {
            copy->out = WRITE(copy->out, "null");
        } else if (!copy_json(copy)) {
            return 0;
        }
        *copy->out++ = i ? ']' : ',';
    }
    *copy->out++ = END_ID;
    return 1;
}

/* Read true or false, `absent` when it is not there: 0 for anything else. */
static int read_setting(ScanSpan span, int absent, int *value) {
    *value = span.at == NULL ? absent : *span.at == 't';
    return span.at == NULL || *span.at == 't' || *span.at == 'f';
}

/* Whether what the byte tokenizer does not print is still of the types that a chat's has. */
static int is_chat(const Scan *scan) {
    ScanSpan kwargs = scan->chat_template_kwargs, effort = scan->reasoning_effort;
    return (kwargs.at == NULL || (*kwargs.at == '{' && is_plain(kwargs))) &&
           (effort.at == NULL || *effort.at == '"' ||
            ((*effort.at == '-' || (*effort.at >= '0' && *effort.at <= '9')) &&
             is_plain(effort))) &&
           (scan->tool_choice.at == NULL || is_plain(scan->tool_choice));
}

int scan_chat_tokens(const Scan *scan, ScanTokens *out) {
    int prompts, continued;
    if (scan->messages.at == NULL || !is_chat(scan) ||
        !read_setting(scan->add_generation_prompt, 1, &prompts) ||
        !read_setting(scan->continue_final_message, 0, &continued)) {
        return 0;
    }
    TRY(reserve(out, scan->messages.size + scan->tools.size + scan->documents.size + MARKS_A_MESSAGE
                * scan->message_count + SLACK));
    Copy copy = {NULL, scan->body + scan->size, out->ids};
    EXPECT(copy_tools(scan, &copy) && copy_messages(scan, continued, &copy));
    if (prompts && !continued) {
        *copy.out++ = ASSISTANT_ID;
    }
    out->count = copy.out - out->ids;
    return 1;
}

int scan_prompt_tokens(const Scan *scan, ScanTokens *out) {
    if (scan->prompt.at == NULL) {
        return 0;
    }
    TRY(reserve(out, scan->prompt.size + SLACK));
    Copy copy = {scan->prompt.at, scan->body + scan->size, out->ids};
    copy_text(&copy);
    out->count = copy.out - out->ids;
    return 1;
}
