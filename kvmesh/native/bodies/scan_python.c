/* The scan of a body as Python sees it. */
#include "base/shell.h"
#include "bodies/json_text.h"
#include "bodies/scan.h"

/* Return the text of a string with escapes, or NULL with an error set. */
static PyObject *unescape(const ScanText *text) {
    uint8_t *room = PyMem_Malloc((size_t)text->size + 4), *out = room;
    if (room == NULL) {
        return PyErr_NoMemory();
    }
    const uint8_t *at = text->at, *end = text->at + text->size;
    while (at < end) {
        const uint8_t *escape = memchr(at, '\\', (size_t)(end - at));
        size_t plain = (size_t)((escape == NULL ? end : escape) - at);
        memcpy(out, at, plain);
        out += plain;
        at += plain;
        if (escape != NULL) {
            uint32_t codepoint;
            at = json_escape(at + 1, &codepoint);
            out += json_utf8(codepoint, out);
        }
    }
    PyObject *made = PyUnicode_DecodeUTF8((const char *)room, out - room, NULL);
    PyMem_Free(room);
    return made;
}

PyObject *scan_text(const ScanText *text) {
    if (text->escaped) {
        return unescape(text);
    }
    if (text->ascii) {
        PyObject *made = PyUnicode_New(text->size, 127);
        if (made != NULL && text->size) {
            memcpy(PyUnicode_1BYTE_DATA(made), text->at, (size_t)text->size);
        }
        return made;
    }
    return PyUnicode_DecodeUTF8((const char *)text->at, text->size, NULL);
}

/* Read the string whose quote is at `*at`, and step behind it. */
static PyObject *text_at(const uint8_t **at, const uint8_t *end) {
    int found = 0;
    const uint8_t *start = *at + 1, *close = json_string(start, end, &found);
    ScanText text = {start, close - start, (found & JSON_ESCAPE) != 0, !(found & JSON_WIDE)};
    *at = close + 1;
    return scan_text(&text);
}

static PyObject *read_message(const uint8_t **at, const uint8_t *end) {
    JsonWalk walk = json_walk(*at + 1, end);
    PyObject *role = NULL, *content = NULL;
    int found = 0;
    while (json_member(&walk, &found) > 0) {
        PyObject **place = JSON_KEY_IS(&walk, "role") ? &role : &content;
        *place = text_at(&walk.at, end);
        if (*place == NULL) {
            XDECREF_ALL(role, content);
            return NULL;
        }
    }
    *at = walk.at;
    PyObject *pair = PyTuple_New(2);
    if (pair == NULL) {
        Py_DECREF(role);
        Py_DECREF(content);
        return NULL;
    }
    PyTuple_SET_ITEM(pair, 0, role);
    PyTuple_SET_ITEM(pair, 1, content);
    return pair;
}

PyObject *scan_messages(const Scan *scan) {
    PyObject *list = PyList_New(scan->message_count);
    JsonWalk walk = json_walk(scan->messages.at + 1, scan->body + scan->size);
    for (Py_ssize_t i = 0; list != NULL && json_item(&walk) > 0; i++) {
        PyObject *message = read_message(&walk.at, walk.end);
        set_made(&list, i, message);
    }
    return list;
}

static PyObject *text_or_none(const ScanText *text) {
    return text->at == NULL ? Py_NewRef(Py_None) : scan_text(text);
}

static PyObject *span_or_none(const ScanSpan *span) {
    if (span->at == NULL) {
        return Py_NewRef(Py_None);
    }
    return PyBytes_FromStringAndSize((const char *)span->at, span->size);
}

static PyObject *as_tuple(const Scan *scan) {
    PyObject *limit = scan->limit < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(scan->limit);
    PyObject *fields[] = {
        text_or_none(&scan->model),
        PyBool_FromLong(scan->stream),
        limit,
        PyLong_FromLong(scan->choices),
        PyLong_FromLong(scan->urgency),
        text_or_none(&scan->user),
        text_or_none(&scan->cache_salt),
        text_or_none(&scan->lora_path),
        text_or_none(&scan->prompt_cache_key),
        span_or_none(&scan->messages),
        PyLong_FromSsize_t(scan->messages.at == NULL ? 0 : scan->message_count),
        text_or_none(&scan->prompt),
        span_or_none(&scan->prompt_value),
        span_or_none(&scan->input),
        span_or_none(&scan->input_ids),
        span_or_none(&scan->system),
        span_or_none(&scan->instructions),
        span_or_none(&scan->tools),
        span_or_none(&scan->documents),
        span_or_none(&scan->tool_choice),
        span_or_none(&scan->chat_template_kwargs),
        span_or_none(&scan->reasoning_effort),
        span_or_none(&scan->add_generation_prompt),
        span_or_none(&scan->continue_final_message),
    };
    Py_ssize_t count = sizeof fields / sizeof *fields;
    PyObject *tuple = PyTuple_New(count);
    int whole = tuple != NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        whole = whole && fields[i] != NULL;
        if (tuple == NULL) {
            Py_XDECREF(fields[i]);
        } else {
            PyTuple_SET_ITEM(tuple, i, fields[i]);
        }
    }
    if (!whole) {
        Py_XDECREF(tuple);
        return NULL;
    }
    return tuple;
}

/* Call `read` with the scan of a buffer: its object, None for what is left to others. */
static PyObject *with_scan(PyObject *body, PyObject *(*read)(const Scan *)) {
    Py_buffer view;
    Scan scan;
    if (PyObject_GetBuffer(body, &view, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    PyObject *made = scan_body(view.buf, view.len, &scan) ? read(&scan) : Py_NewRef(Py_None);
    PyBuffer_Release(&view);
    return made;
}

static PyObject *messages_of(const Scan *scan) {
    if (scan->messages.at == NULL || !scan->plain) {
        return Py_NewRef(Py_None);
    }
    return scan_messages(scan);
}

static PyObject *tokens_of(const Scan *scan) {
    ScanTokens tokens = {NULL, 0, 0};
    int done = scan->messages.at == NULL ? scan_prompt_tokens(scan, &tokens)
                                         : scan_chat_tokens(scan, &tokens);
    PyObject *made = done < 0 ? PyErr_NoMemory() : done == 0 ? Py_NewRef(Py_None)
        : PyBytes_FromStringAndSize((const char *)tokens.ids, tokens.count * 4);
    scan_release(&tokens);
    return made;
}

static PyObject *native_scan_body(PyObject *Py_UNUSED(module), PyObject *body) {
    return with_scan(body, as_tuple);
}

static PyObject *native_scan_tokens(PyObject *Py_UNUSED(module), PyObject *body) {
    return with_scan(body, tokens_of);
}

static PyObject *native_scan_messages(PyObject *Py_UNUSED(module), PyObject *body) {
    return with_scan(body, messages_of);
}

PyMethodDef native_scan_methods[] = {
    METHOD_O("scan_body", native_scan_body),
    METHOD_O("scan_tokens", native_scan_tokens),
    METHOD_O("scan_messages", native_scan_messages),
    {NULL, NULL, 0, NULL},
};
