/* What routing did: a record of each decision, sums, and how prompts repeat.
 *
 * records.c is one decision and what became of it, ring.c the last of them. totals.c sums by second,
 * histograms.c counts. In spare time prefixes.c counts common beginnings of prompts, and robin.c finds what
 * plain round robin would have reused.
 */
#pragma once

#include "insight/readers.h"
#include "insight/records.h"
#include "insight/totals.h"
