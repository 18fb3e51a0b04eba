/* Bookings among replicas: records of fixed size, written as they happen and folded as they come.
 *
 * booking_wire.h has the bytes. outbox.c writes what siblings are told, placed_record.c of a new booking;
 * outbox_methods.c makes messages of it. message_fold.c folds a sibling's message, peer.c finds its
 * bookings by their numbers.
 */
#pragma once

#include "peers/outbox.h"
#include "peers/peer.h"
