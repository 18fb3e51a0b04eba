/* Names made once: see names.h. */
#include "base/names.h"

struct Interned interned;

int names_ready(void) {
#define INTERN(name) interned.name = PyUnicode_InternFromString(#name);
    INTERNED(INTERN)
#undef INTERN
    return PyErr_Occurred() ? -1 : 0;
}
