/* What routing reads of a request body, found in one pass over its bytes.
 *
 * Nothing is made of the body: what is found are spans of it, good as long as the body is. A scan
 * accepts only what the strict parser does (`kvmesh.core.chat.inference`), with the same values, and
 * leaves all that is unusual to it. Its naive model is tests/reference/prompts/body_scan.py.
 */
#pragma once

#include "base/base.h"

/* Nesting that is followed; the strict parser goes as deep as the interpreter's stack. */
#define SCAN_DEPTH 64

/* A value as it stands in the body; `at` NULL: the field is absent or null. */
typedef struct {
    const uint8_t *at;
    Py_ssize_t size;
} ScanSpan;

/* A JSON string between its quotes. Not `escaped`: its bytes are its text in UTF-8. */
typedef struct {
    const uint8_t *at; /* NULL: absent or null; "" is not NULL */
    Py_ssize_t size;   /* bytes */
    int escaped;
    int ascii;
} ScanText;

typedef struct {
    const uint8_t *body;
    Py_ssize_t size;

    ScanText model; /* 512 bytes at most */
    int stream; /* true; false, null and absent are 0 */
    int32_t limit;   /* tokens of one answer, 0 to MAX_TOKENS; -1: none is set */
    int32_t choices; /* 1 to MAX_CHOICES */
    int32_t urgency; /* of the engine's `priority`: larger first, 0 when it is not set */
    ScanText user, cache_salt, lora_path, prompt_cache_key;
    int keep_s; /* for how long its client wishes its prompt kept, seconds; 0: it does not say */

    /* A chat: a list of one object or more. NULL without the field; any other value is left. */
    ScanSpan messages;
    Py_ssize_t message_count;
    int plain;    /* every message is exactly a role and a content, both strings, each once */
    ScanText prompt; /* of a completion, when it is a string */
    ScanSpan prompt_value; /* whatever it is */
    ScanSpan input, input_ids, system, instructions, tools, documents, tool_choice;
    ScanSpan chat_template_kwargs, reasoning_effort;
    ScanSpan add_generation_prompt, continue_final_message; /* also for null: the strict reader minds */
} Scan;

/* Token ids; zeroed before its first use, reused from call to call, freed by `scan_release`. */
typedef struct {
    uint32_t *ids;
    Py_ssize_t count, room;
} ScanTokens;

/* Scan a body: 1, or 0: let the strict parser read it, and say what is wrong if anything is. Takes
 * no memory and sets no error. A chat is one only if `out->messages.at` is set. */
int scan_body(const char *body, Py_ssize_t size, Scan *out);

/* Write the ids that `ByteTokenizer.pack_chat` gives for the chat of a scan: 1, 0: let it do it
 * itself (media, unusual numbers in tools, wrong types), -1 without an error set: no memory. */
int scan_chat_tokens(const Scan *scan, ScanTokens *out);

/* The same for `ByteTokenizer.pack` of a completion's `prompt`. */
int scan_prompt_tokens(const Scan *scan, ScanTokens *out);

void scan_release(ScanTokens *tokens);

/* Return a new str, NULL with an error set. */
PyObject *scan_text(const ScanText *text);

/* Return a list of (role, content), new strs, of a `plain` chat; NULL with an error set. */
PyObject *scan_messages(const Scan *scan);

extern PyMethodDef native_scan_methods[];
