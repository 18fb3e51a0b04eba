/* Names of attributes that each request asks for. */
#include "decide/decide.h"

AskedNames asked_names;

int asked_names_ready(void) {
    asked_names = (AskedNames){
        .view = PyUnicode_InternFromString("view"),
        .used_blocks = PyUnicode_InternFromString("used_blocks"),
        .waiting_requests = PyUnicode_InternFromString("waiting_requests"),
        .course_of = PyUnicode_InternFromString("course_of"),
        .prepare = PyUnicode_InternFromString("prepare"),
        .allow = PyUnicode_InternFromString("allow"),
        .made = PyUnicode_InternFromString("made"),
    };
    return PyErr_Occurred() ? -1 : 0;
}
