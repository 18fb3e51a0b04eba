/* What reads prompts from the ring in spare time (core.insight.decision_log): PrefixCounts and
 * RoundRobinShadow.
 */
#pragma once

#include "base/base.h"

extern PyTypeObject prefix_counts_type, robin_shadow_type;
