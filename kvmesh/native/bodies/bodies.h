/* Bodies of requests: what routing reads of their JSON, in one pass without objects.
 *
 * json_text.c passes over strings, numbers and values. scan.c finds the fields, scan_tokens.c makes the
 * byte tokenizer's ids of them, json_copy.c those of values. scanned.c keeps a body with its scan,
 * json_size.c counts what a body holds, usage_wish.c asks for a stream's usage in it. What is unusual is
 * left to the strict parser in Python.
 */
#pragma once

#include "base/base.h"

extern PyMethodDef native_json_methods[], native_usage_methods[];
