/* HTTP/2 of a gRPC server: one connection's bytes in, its calls and messages out, and back.
 *
 * h2_receive.c cuts bytes into frames, h2_frames.c takes each kind, h2_calls.c those of a call. h2_send.c
 * sends as far as flow control allows, h2_streams.c holds the streams. hpack.c reads header blocks.
 * h2_session.c is what Python sees.
 */
#pragma once

#include "base/base.h"

extern PyTypeObject session_type;

/* Prepare the decoder of header blocks, once; -1 with MemoryError set. */
int hpack_ready(void);
