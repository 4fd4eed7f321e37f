/* The measured loop of the ONNX driver: two clock readings around each sample and the runtime's own Run, nothing else.
 * Compiled on the device by drivers/native/library.py, called from drivers/native/loop.py. Pointers into the runtime come from its own table. */
#include <stddef.h>
#include <stdint.h>

#ifdef _WIN32
#include <windows.h>
#define SHOWN __declspec(dllexport)
static int64_t now_ns(void) {
    LARGE_INTEGER ticks, rate;
    QueryPerformanceCounter(&ticks), QueryPerformanceFrequency(&rate);
    return (int64_t)((double)ticks.QuadPart * 1e9 / (double)rate.QuadPart);
}
#else
#include <time.h>
#define SHOWN __attribute__((visibility("default")))
static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
#endif

struct inference {
    void *(*run)(void *session, const void *options, const char *const *input_names, const void *const *inputs, size_t input_count,
                 const char *const *output_names, size_t output_count, void **outputs);
    void (*release)(void *value); /* null: the outputs have their memory; else they are let go before each inference */
    void *session;
    const char *const *input_names;
    const void *const *inputs;
    size_t input_count;
    const char *const *output_names;
    size_t output_count;
    void **outputs;
};

/* Fills samples[start..stop) with the rounded mean of per_sample inferences. Returns null, or the status of the one that failed. */
SHOWN void *sark_time(const struct inference *one, int64_t *samples, int64_t start, int64_t stop, int64_t per_sample) {
    for (int64_t index = start; index < stop; index++) {
        int64_t began = now_ns();
        for (int64_t turn = 0; turn < per_sample; turn++) {
            for (size_t each = 0; one->release && each < one->output_count; each++) {
                if (one->outputs[each]) one->release(one->outputs[each]);
                one->outputs[each] = NULL;
            }
            void *failed = one->run(one->session, NULL, one->input_names, one->inputs, one->input_count, one->output_names, one->output_count, one->outputs);
            if (failed) return failed;
        }
        samples[index] = (now_ns() - began + per_sample / 2) / per_sample;
    }
    return NULL;
}

/* Fills samples[0..count) with the time between two clock readings. */
SHOWN void sark_clock(int64_t *samples, int64_t count) {
    for (int64_t index = 0; index < count; index++) {
        int64_t began = now_ns();
        samples[index] = now_ns() - began;
    }
}
