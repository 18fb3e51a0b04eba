/* Bytes of HTTP and of gateways: request heads, ext_proc messages, and streams of events.
 *
 * take.c reads a whole request, head.c keeps its fields, heads.c compares heads that come again. sse.c
 * finds tokens and usage in an answer as it passes by; events.c says where an event ends; unasked.c leaves
 * usage out. keep.c keeps the token ids of one, which keep_scan.c finds. extproc_read.c reads the messages
 * of Envoy's external processing. What is unusual is left to Python code that gives the same values.
 */
#pragma once

#include "base/base.h"

extern PyMethodDef native_head_methods[], native_extproc_read_methods[],
    native_take_methods[];
extern PyTypeObject event_stream_type;
