/* Uses trefoil in a program with CUDA code of its own:
 *
 *     interop MODEL [DEVICE [BATCHES]]
 *
 * DEVICE is cpu or a GPU's number. The program has a context of its own and two streams: on one a "decoder" puts pixels
 * into device memory, on the other a "consumer" takes the results. trefoil reads the pixels where they are, leaves the
 * results on the device, and orders all work by events. After the set-up nothing is copied between host and device, and
 * no thread waits for the GPU, except for a free batch if it is far ahead. In the end the results are compared with those
 * of the same pixels from page-locked memory.
 *
 * The driver is loaded at run time, so that no CUDA is needed to build this. On the CPU, device memory is
 * host memory, and the calling thread takes the place of the stream.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <threads.h>
#include <time.h>

#include <trefoil.h>

enum { ROWS = 4 };

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void must(trefoil_status status)
{
    if (status != TREFOIL_STATUS_OK)
        fail(trefoil_status_name(status), trefoil_last_error());
}

/* Of the CUDA driver what this program calls: handles are pointers, device memory is an integer, 0 is success. */
static int (*init)(unsigned), (*device_get)(int *, int), (*context_create)(void **, unsigned, int);
static int (*context_destroy)(void *), (*stream_create)(void **, unsigned), (*stream_destroy)(void *);
static int (*stream_synchronize)(void *), (*allocate)(uintptr_t *, size_t), (*deallocate)(uintptr_t);
static int (*upload)(uintptr_t, const void *, size_t), (*download)(void *, uintptr_t, size_t);
static int (*copy_async)(uintptr_t, uintptr_t, size_t, void *);

static void load_driver(void)
{
    const struct {
        void *function;
        const char *name;
    } names[] = {
        {&init, "cuInit"}, {&device_get, "cuDeviceGet"}, {&context_create, "cuCtxCreate_v2"},
        {&context_destroy, "cuCtxDestroy_v2"}, {&stream_create, "cuStreamCreate"},
        {&stream_destroy, "cuStreamDestroy_v2"}, {&stream_synchronize, "cuStreamSynchronize"},
        {&allocate, "cuMemAlloc_v2"}, {&deallocate, "cuMemFree_v2"}, {&upload, "cuMemcpyHtoD_v2"},
        {&download, "cuMemcpyDtoH_v2"}, {&copy_async, "cuMemcpyDtoDAsync_v2"},
    };
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL)
        fail("libcuda.so.1", dlerror());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *found = dlsym(driver, names[i].name);
        if (found == NULL)
            fail(names[i].name, "not in libcuda.so.1");
        memcpy(names[i].function, &found, sizeof found);
    }
}

static void cuda(int status, const char *call)
{
    char text[32];
    snprintf(text, sizeof text, "CUDA status %d", status);
    if (status != 0)
        fail(call, text);
}
#define CUDA(call) cuda(call, #call)

/* The same where all memory is the host's. */
static int host_allocate(uintptr_t *address, size_t bytes) { return (*address = (uintptr_t)malloc(bytes)) == 0; }
static int host_deallocate(uintptr_t address) { return free((void *)address), 0; }
static int host_upload(uintptr_t to, const void *from, size_t bytes) { return memcpy((void *)to, from, bytes), 0; }
static int host_download(void *to, uintptr_t from, size_t bytes) { return memcpy(to, (const void *)from, bytes), 0; }
static int host_copy(uintptr_t to, uintptr_t from, size_t bytes, void *stream)
{
    (void)stream;
    return memcpy((void *)to, (const void *)from, bytes), 0;
}
static int host_stream(void *stream) { return stream != NULL; }

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: interop MODEL [DEVICE [BATCHES]]\n");
        return 64;
    }
    const int on_cpu = argc < 3 || strcmp(argv[2], "cpu") == 0;
    const size_t batches = argc > 3 ? (size_t)atoi(argv[3]) : 16;
    must(trefoil_check_abi(TREFOIL_ABI_MAJOR, TREFOIL_ABI_MINOR));

    /* The program's own: a context, two streams. */
    void *context = NULL, *decoder = NULL, *consumer = NULL;
    trefoil_device device;
    if (on_cpu) {
        allocate = host_allocate, deallocate = host_deallocate, upload = host_upload, download = host_download;
        copy_async = host_copy, stream_synchronize = stream_destroy = host_stream;
        must(trefoil_device_open("cpu", &device));
    } else {
        int gpu;
        load_driver();
        CUDA(init(0));
        CUDA(device_get(&gpu, atoi(argv[2])));
        CUDA(context_create(&context, 0, gpu));
        CUDA(stream_create(&decoder, 1)); /* 1: not ordered by the default stream */
        CUDA(stream_create(&consumer, 1));
        must(trefoil_device_open_context(context, &device));
    }
    trefoil_model model;
    trefoil_engine engine;
    trefoil_tensor input = {.size = sizeof input}, result = {.size = sizeof result};
    must(trefoil_model_open(argv[1], &model));
    trefoil_engine_options options = {.size = sizeof options, .device = device, .batch = ROWS, .device_results = 1};
    must(trefoil_engine_build(model, &options, &engine));
    must(trefoil_engine_input(engine, &input));
    must(trefoil_engine_output(engine, &result));

    /* A film of noise, one row a frame, of which each batch shows the next frames; one buffer for decoded pixels, which
     * every batch overwrites; room for all results. */
    const size_t frame = input.row_bytes, film_bytes = (batches + ROWS) * frame, kept_bytes = ROWS * result.row_pitch;
    unsigned char *film = malloc(film_bytes), *answers = malloc(batches * kept_bytes);
    uintptr_t source, pixels, kept;
    unsigned noise = 1;
    if (film == NULL || answers == NULL || batches == 0)
        fail("interop", "out of memory");
    for (size_t i = 0; i < film_bytes; i++)
        film[i] = (unsigned char)((noise = noise * 1664525 + 1013904223) >> 24);
    CUDA(allocate(&source, film_bytes));
    CUDA(allocate(&pixels, ROWS * frame));
    CUDA(allocate(&kept, batches * kept_bytes));
    CUDA(upload(source, film, film_bytes));

    struct timespec begin, end;
    timespec_get(&begin, TIME_UTC);
    for (size_t i = 0; i < batches; i++) {
        trefoil_batch batch;
        trefoil_device_output output;
        trefoil_device_output_info there = {.size = sizeof there};
        /* The decoder overwrites the pixels at once: its stream has copied the last ones. */
        CUDA(copy_async(pixels, source + i * frame, ROWS * frame, decoder));
        trefoil_device_rows rows = {.size = sizeof rows, .address = (const void *)pixels, .stream = decoder};
        must(trefoil_acquire(engine, &batch));
        must(trefoil_batch_read_from(batch, &rows));
        must(trefoil_submit_to_device(batch, ROWS, &output));
        /* The consumer takes the result on the device when it is there. */
        must(trefoil_device_output_get_info(output, &there));
        must(trefoil_device_output_wait_on(output, consumer));
        const size_t bytes = (there.rows - 1) * there.row_pitch + there.row_bytes;
        CUDA(copy_async(kept + i * kept_bytes, (uintptr_t)there.address, bytes, consumer));
        must(trefoil_device_output_read_on(output, consumer));
        must(trefoil_release(output)); /* waits for nothing: the memory is used again when the consumer has read it */
    }
    CUDA(stream_synchronize(consumer));
    timespec_get(&end, TIME_UTC);
    const double took = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);

    /* The same pixels from page-locked memory. */
    size_t differing = 0;
    CUDA(download(answers, kept, batches * kept_bytes));
    for (size_t i = 0; i < batches; i++) {
        trefoil_batch batch;
        trefoil_ticket ticket;
        trefoil_output output;
        must(trefoil_acquire(engine, &batch));
        for (size_t row = 0; row < ROWS; row++) {
            void *to;
            size_t bytes;
            must(trefoil_batch_row(batch, row, &to, &bytes));
            memcpy(to, film + (i + row) * frame, bytes);
        }
        must(trefoil_submit(batch, ROWS, &ticket));
        must(trefoil_wait(ticket, &output));
        for (size_t row = 0; row < ROWS; row++) {
            const void *expected;
            size_t bytes;
            must(trefoil_output_row(output, row, &expected, &bytes));
            differing += memcmp(answers + i * kept_bytes + row * result.row_pitch, expected, bytes) != 0;
        }
        must(trefoil_release(output));
    }

    /* The context is the program's to destroy, when trefoil has nothing in it any more. */
    trefoil_device_info info = {.size = sizeof info};
    must(trefoil_device_get_info(device, &info));
    must(trefoil_release(engine));
    trefoil_status left;
    while ((left = trefoil_device_is_unused(device)) == TREFOIL_STATUS_NOT_READY)
        thrd_yield();
    must(left);
    must(trefoil_release(device));
    must(trefoil_release(model));
    CUDA(deallocate(source) | deallocate(pixels) | deallocate(kept));
    CUDA(stream_destroy(decoder) | stream_destroy(consumer));
    if (context != NULL)
        CUDA(context_destroy(context));
    free(film);
    free(answers);
    printf("%zu batches of %d rows on %s: %.0f rows/s from device memory to device memory\n", batches, ROWS, info.target,
           (double)(batches * ROWS) / took);
    printf("%zu of %zu results differ from those of page-locked memory\n", differing, batches * ROWS);
    return differing != 0;
}
