/* The reference of inference_bias.py: a whole program that opens onnxruntime, loads a model, fills its inputs and runs it in the
 * tightest loop there is. It shares nothing with the measured driver but the runtime's library.
 *
 *     reference_loop LIBRARY MODEL INPUTS RUNS THREADS OUTPUT…      prints the nanoseconds of each inference after the first
 *
 * INPUTS is a file: for each input "name type rank size… bytes\n", then so many bytes.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MOST 64
typedef void *status;
static void **api;

static void good(void *failed) {
    if (!failed) return;
    fprintf(stderr, "%s\n", ((const char *(*)(void *))api[2])(failed));
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int main(int count, char **arguments) {
    if (count < 7) return 2;
    void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    struct { void **(*api)(uint32_t); const char *(*version)(void); } *base = ((void *(*)(void))dlsym(library, "OrtGetApiBase"))();
    api = base->api(16);
    long runs = atol(arguments[4]);
    void *env, *options, *session, *allocator, *inputs[MOST], *outputs[MOST] = {0};
    char *names[MOST];
    size_t taken = 0, given = (size_t)count - 6;
    good(((status(*)(int, const char *, void **))api[3])(3, "reference", &env));
    good(((status(*)(void **))api[10])(&options));
    good(((status(*)(void *, int))api[24])(options, atoi(arguments[5])));
    good(((status(*)(void *, int))api[25])(options, 1));
    good(((status(*)(void *, const char *, const char *))api[130])(options, "session.intra_op.allow_spinning", "0"));
    good(((status(*)(void *, const char *, void *, void **))api[7])(env, arguments[2], options, &session));
    good(((status(*)(void **))api[78])(&allocator));
    FILE *file = fopen(arguments[3], "rb");
    char name[512];
    for (int type, rank; file && fscanf(file, "%511s %d %d", name, &type, &rank) == 3; taken++) {
        int64_t sizes[16];
        size_t bytes;
        void *data;
        for (int axis = 0; axis < rank; axis++)
            if (fscanf(file, "%ld", &sizes[axis]) != 1) return 3;
        if (fscanf(file, "%zu", &bytes) != 1 || fgetc(file) != '\n' || taken == MOST) return 3;
        good(((status(*)(void *, const int64_t *, size_t, int, void **))api[48])(allocator, sizes, (size_t)rank, type, &inputs[taken]));
        good(((status(*)(void *, void **))api[51])(inputs[taken], &data));
        if (fread(data, 1, bytes, file) != bytes) return 3;
        names[taken] = malloc(512);
        snprintf(names[taken], 512, "%s", name);
    }
    status (*run)(void *, void *, char **, void **, size_t, char **, size_t, void **) = (void *)api[9];
    int64_t *samples = malloc((size_t)runs * sizeof *samples);
    good(run(session, NULL, names, inputs, taken, arguments + 6, given, outputs));
    for (long index = 0; index < runs; index++) {
        int64_t began = now_ns();
        void *failed = run(session, NULL, names, inputs, taken, arguments + 6, given, outputs);
        samples[index] = now_ns() - began;
        if (failed) good(failed);
    }
    for (long index = 0; index < runs; index++) printf("%ld\n", samples[index]);
    return 0;
}
