/* What workers probably hold, by what was sent to them lately.
 *
 * believed.c has the blocks of one worker, leases.c says for how long each is believed, prompt_slots.c
 * which prompts an engine with slots keeps, approx.c is the index of all workers, learned.c corrects it by
 * what answers tell. approx_type.c is what Python sees.
 */
#pragma once

#include "beliefs/approx.h"
#include "beliefs/leases.h"
