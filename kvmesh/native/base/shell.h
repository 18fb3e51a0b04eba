/* What Python sees of a type: its slots, its methods, and how it lets go of what it holds.
 *
 * kvmesh/_native.pyi says what each method does; no text of it stands here. A type has the functions
 * PREFIX_new, PREFIX_dealloc and PREFIX_traverse.
 *
 * Written by hand, with macros for what types have in common: tried in speeds/speed_types.c, that is 114
 * lines instead of 187, at 34 ns for a call with one argument and 50 ns for one with three. Cython's
 * needs some 80, of which 25 declare again what the headers have, at 43 and 45 ns; but 56 KiB of code
 * instead of 3, 13,000 generated lines in each sdist, and every struct that two rooms share declared twice.
 */
#pragma once

#include "base/arguments.h"

#include <structmember.h>

#define AS_FUNCTION(function) (PyCFunction)(void (*)(void))(function)

#define METHOD_NOARGS(name, function) {name, AS_FUNCTION(function), METH_NOARGS, NULL}
#define METHOD_O(name, function) {name, AS_FUNCTION(function), METH_O, NULL}
#define METHOD_FASTCALL(name, function) {name, AS_FUNCTION(function), METH_FASTCALL, NULL}
#define METHOD_KEYWORDS(name, function) \
    {name, AS_FUNCTION(function), METH_FASTCALL | METH_KEYWORDS, NULL}

/* A getter, and a method without arguments, of one expression of `self`. */
#define GETTER(struct_, name, expression) \
    static PyObject *name(struct_ *self, void *Py_UNUSED(closure)) { return expression; }
#define RETURNS(struct_, name, expression) \
    static PyObject *name(struct_ *self, PyObject *Py_UNUSED(nothing)) { return expression; }

/* The members of a PyMemberDef's table that are named as their fields, all of one kind. */
#define STRUCT_OF(struct_, kind, flags) struct_
#define KIND_OF(struct_, kind, flags) kind
#define FLAGS_OF(struct_, kind, flags) flags
#define FIELD_OF(with, name) \
    {#name, KIND_OF with, offsetof(STRUCT_OF with, name), FLAGS_OF with, NULL},
#define FIELDS(struct_, kind, flags, ...) EACH(FIELD_OF, (struct_, kind, flags), __VA_ARGS__)

/* Functions of a type for which these of its fields are all that it owns: what lets go of one, of one
 * that the collector visits, after a statement if there is more to do, and what the collector visits.
 */
#define DROP_FIELD(with, name) Py_XDECREF(self->name);
#define VISIT_FIELD(with, name) Py_VISIT(self->name);
#define DEALLOC_AFTER(struct_, prefix, statement, ...) \
    static void prefix##_dealloc(struct_ *self) { \
        statement; \
        EACH(DROP_FIELD, , __VA_ARGS__) \
        Py_TYPE(self)->tp_free((PyObject *)self); \
    }
#define DEALLOC(struct_, prefix, ...) DEALLOC_AFTER(struct_, prefix, , __VA_ARGS__)
#define GC_DEALLOC_AFTER(struct_, prefix, statement, ...) \
    DEALLOC_AFTER(struct_, prefix, PyObject_GC_UnTrack(self); statement, __VA_ARGS__)
#define GC_DEALLOC(struct_, prefix, ...) GC_DEALLOC_AFTER(struct_, prefix, , __VA_ARGS__)
#define TRAVERSE(struct_, prefix, ...) \
    static int prefix##_traverse(struct_ *self, visitproc visit, void *arg) { \
        EACH(VISIT_FIELD, , __VA_ARGS__) \
        return 0; \
    }

/* Tables of methods, getters and members. */
#define METHODS(name, ...) static PyMethodDef name[] = {__VA_ARGS__, {NULL, NULL, 0, NULL}};
#define GETTERS(name, ...) static PyGetSetDef name[] = {__VA_ARGS__, {NULL, NULL, NULL, NULL, NULL}};
#define MEMBERS(name, ...) static PyMemberDef name[] = {__VA_ARGS__ {NULL, 0, 0, 0, NULL}};

/* The slots that each type has, then those of one that Python calls, of one that the collector
 * visits, of one that only C makes, and of one that holds nothing.
 */
#define SLOTS(name, size, flags) \
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "kvmesh._native." name, .tp_basicsize = size, \
    .tp_flags = Py_TPFLAGS_DEFAULT | (flags)
#define TYPE(name, struct_, prefix) \
    SLOTS(name, sizeof(struct_), 0), .tp_new = prefix##_new, \
    .tp_dealloc = (destructor)prefix##_dealloc
#define GC_TYPE(name, struct_, prefix) \
    SLOTS(name, sizeof(struct_), Py_TPFLAGS_HAVE_GC), .tp_new = prefix##_new, \
    .tp_dealloc = (destructor)prefix##_dealloc, .tp_traverse = (traverseproc)prefix##_traverse
#define INNER_TYPE(name, struct_, prefix) \
    SLOTS(name, sizeof(struct_), Py_TPFLAGS_DISALLOW_INSTANTIATION), \
    .tp_dealloc = (destructor)prefix##_dealloc
#define PLAIN_TYPE(name, struct_) SLOTS(name, sizeof(struct_), 0), .tp_new = PyType_GenericNew
