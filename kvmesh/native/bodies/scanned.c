/* Scanned: what routing reads of a request's body, without a Python object made of the rest. */
#include "base/shell.h"
#include "base/xxh3.h"
#include "bodies/json_text.h"
#include "bodies/scanned.h"

/* scan(body, chat) -> Scanned | None */
static PyObject *native_scan(PyObject *Py_UNUSED(module), ARGUMENTS) {
    REFUSE_OR_NULL(nargs != 2 || !PyBytes_Check(args[0]), PyExc_TypeError,
                   "scan takes a body, bytes, and whether it is a chat");
    int chat = PyObject_IsTrue(args[1]);
    Scanned *self = chat < 0 ? NULL : PyObject_New(Scanned, &scanned_type);
    NEED_OR_NULL(self);
    self->body = Py_NewRef(args[0]);
    self->model = NULL;
    self->chat = chat;
    const Scan *scan = &self->scan;
    int known = scan_body(PyBytes_AS_STRING(args[0]), PyBytes_GET_SIZE(args[0]), &self->scan);
    if (!known || scan->lora_path.at != NULL || scan->input_ids.at != NULL || scan->choices > 1 ||
        (chat ? scan->messages.at : scan->prompt.at) == NULL) {
        Py_DECREF(self);
        Py_RETURN_NONE;
    }
    self->model = scan->model.at == NULL ? PyUnicode_New(0, 0) : scan_text(&scan->model);
    return made_or_null(self);
}

DEALLOC(Scanned, scanned, body, model)

static PyObject *scanned_messages(Scanned *self, void *Py_UNUSED(closure)) {
    if (!self->chat || !self->scan.plain) {
        Py_RETURN_NONE;
    }
    return scan_messages(&self->scan);
}

static PyObject *scanned_prompt(Scanned *self, void *Py_UNUSED(closure)) {
    if (self->chat) {
        Py_RETURN_NONE;
    }
    return scan_text(&self->scan.prompt);
}

static PyObject *scanned_cache_key(Scanned *self, void *Py_UNUSED(closure)) {
    const ScanText *key = &self->scan.prompt_cache_key;
    return key->at == NULL ? PyUnicode_New(0, 0) : scan_text(key);
}

static PyObject *scanned_salt(Scanned *self, void *Py_UNUSED(closure)) {
    const ScanText *salt = &self->scan.cache_salt;
    return salt->at == NULL ? PyUnicode_New(0, 0) : scan_text(salt);
}

/* Whether nothing but messages, all plain, reaches the chat template. */
static PyObject *scanned_bare(Scanned *self, void *Py_UNUSED(closure)) {
    const Scan *scan = &self->scan;
    return PyBool_FromLong(self->chat && scan->plain && scan->tools.at == NULL &&
                           scan->documents.at == NULL && scan->tool_choice.at == NULL &&
                           scan->chat_template_kwargs.at == NULL &&
                           scan->reasoning_effort.at == NULL &&
                           scan->add_generation_prompt.at == NULL &&
                           scan->continue_final_message.at == NULL);
}

/* Whether `entry` is a pair whose first is `domain` and the message behind it. */
static int is_of(PyObject *entry, PyObject *domain, const uint8_t *at, Py_ssize_t size) {
    if (entry == NULL || !PyTuple_CheckExact(entry) || PyTuple_GET_SIZE(entry) != 2 ||
        !PyBytes_CheckExact(PyTuple_GET_ITEM(entry, 0))) {
        return 0;
    }
    PyObject *read = PyTuple_GET_ITEM(entry, 0);
    Py_ssize_t start = PyBytes_GET_SIZE(domain);
    return PyBytes_GET_SIZE(read) == start + size &&
           !memcmp(PyBytes_AS_STRING(read), PyBytes_AS_STRING(domain), (size_t)start) &&
           !memcmp(PyBytes_AS_STRING(read) + start, at, (size_t)size);
}

/* find_messages(kept, seed, domain) -> what is kept of each, None for nothing; where the others are */
static PyObject *scanned_find_messages(Scanned *self, ARGUMENTS) {
    PyObject *kept, *domain;
    uint64_t seed;
    TRY_OR_NULL(READ_PLACED("find_messages", "DKS", "kept seed domain", &kept, &seed, &domain));
    const Scan *scan = &self->scan;
    Py_ssize_t count = self->chat ? scan->message_count : 0;
    PyObject *messages = PyList_New(count), *others = PyList_New(0);
    JsonWalk walk = json_walk(count ? scan->messages.at + 1 : scan->body, scan->body + scan->size);
    for (Py_ssize_t i = 0; i < count && messages != NULL && others != NULL; i++) {
        int found = 0;
        json_item(&walk);
        const uint8_t *at = walk.at;
        walk.at = json_value(at, walk.end, SCAN_DEPTH, &found);
        PyObject *place = PyLong_FromUnsignedLongLong(xxh3_64(at, (size_t)(walk.at - at), seed));
        PyObject *entry = place == NULL ? NULL : PyDict_GetItemWithError(kept, place);
        int known = is_of(entry, domain, at, walk.at - at);
        if (!known && !PyErr_Occurred()) {
            append_made(&others, Py_BuildValue("nOnn", i, place, (Py_ssize_t)(at - scan->body),
                                               (Py_ssize_t)(walk.at - scan->body)));
        }
        PyObject *one = known ? PyTuple_GET_ITEM(entry, 1) : Py_None;
        set_made(&messages, i, PyErr_Occurred() ? NULL : Py_NewRef(one));
        Py_XDECREF(place);
    }
    PyObject *made = messages == NULL || others == NULL ? NULL : PyTuple_Pack(2, messages, others);
    XDECREF_ALL(messages, others);
    return made;
}

static PyObject *scanned_rest(Scanned *self, void *Py_UNUSED(closure)) {
    const ScanSpan *list = &self->scan.messages;
    const char *body = PyBytes_AS_STRING(self->body), *end = body + self->scan.size;
    const char *from = list->at == NULL ? end : (const char *)list->at + 1;
    const char *to = list->at == NULL ? end : from + list->size - 2;
    PyObject *rest = PyBytes_FromStringAndSize(body, from - body);
    PyBytes_ConcatAndDel(&rest, PyBytes_FromStringAndSize(to, end - to));
    return rest;
}

MEMBERS(members,
    FIELDS(Scanned, T_OBJECT, READONLY, body, model)
    {"count", T_PYSSIZET, offsetof(Scanned, scan.message_count), READONLY, NULL},)

/* Whether it asks for something by fields that most bodies lack. */
GETTER(Scanned, scanned_asks, PyBool_FromLong(self->scan.urgency || self->scan.keep_s ||
                                              self->scan.prompt_cache_key.size))

GETTER(Scanned, scanned_keep_s, PyLong_FromLong(self->scan.keep_s))

GETTER(Scanned, scanned_urgency, PyLong_FromLong(self->scan.urgency))

GETTER(Scanned, scanned_streams, PyBool_FromLong(self->scan.stream))

GETTER(Scanned, scanned_limit, PyLong_FromLongLong(self->scan.limit > 0 ? self->scan.limit : 0))

GETTERS(getters,
    {"asks", (getter)scanned_asks, NULL, "Whether it has an urgency, a key or a time to be kept.", NULL},
    {"bare", (getter)scanned_bare, NULL, "Whether only plain messages reach the template.", NULL},
    {"cache_key", (getter)scanned_cache_key, NULL, "Its prompt_cache_key, or nothing.", NULL},
    {"keep_s", (getter)scanned_keep_s, NULL, "For how long its prompt shall be kept, or 0.", NULL},
    {"limit", (getter)scanned_limit, NULL, "The most tokens of its answer, 0: it does not say.", NULL},
    {"messages", (getter)scanned_messages, NULL, "(role, content) of a plain chat, or None.", NULL},
    {"rest", (getter)scanned_rest, NULL, "The body of a chat, its list of messages empty.", NULL},
    {"salt", (getter)scanned_salt, NULL, "Its cache_salt, or nothing.", NULL},
    {"streams", (getter)scanned_streams, NULL, "Whether its answer comes in pieces.", NULL},
    {"urgency", (getter)scanned_urgency, NULL, "Of its priority, larger first.", NULL},
    {"prompt", (getter)scanned_prompt, NULL, "The text of a completion's prompt, or None.", NULL})

METHODS(methods, METHOD_FASTCALL("find_messages", scanned_find_messages))

PyMethodDef native_scanned_methods[] = {
    METHOD_FASTCALL("scan", native_scan),
    {NULL, NULL, 0, NULL},
};

PyTypeObject scanned_type = {
    INNER_TYPE("Scanned", Scanned, scanned),
    .tp_members = members, .tp_getset = getters, .tp_methods = methods,
};
