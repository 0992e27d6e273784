/* Valgrind's client requests for Python, by ctypes: when callgrind instruments, and when it counts. */
#include <valgrind/callgrind.h>

void start_instrumentation(void) { CALLGRIND_START_INSTRUMENTATION; }
void stop_instrumentation(void) { CALLGRIND_STOP_INSTRUMENTATION; }
void toggle_collect(void) { CALLGRIND_TOGGLE_COLLECT; }
