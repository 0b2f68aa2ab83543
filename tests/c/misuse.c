/* Every misuse of the interface that can be told, with the status and the message it gets: misuse MODEL */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <trefoil.h>

#include "expect.h"

static void *other_message(void *unused)
{
    (void)unused;
    return (void *)(size_t)strlen(trefoil_last_error());
}

static void nothing(void *user, trefoil_status status, trefoil_output output)
{
    (void)user, (void)status, (void)output;
}

static void count(void *user, trefoil_status status, trefoil_output output)
{
    (void)output;
    if (status == TREFOIL_STATUS_CLOSED && strstr(trefoil_last_error(), "closed") != NULL)
        __atomic_add_fetch((int *)user, 1, __ATOMIC_SEQ_CST);
}

static int done(const int *flag)
{
    for (int i = 0; i < 6000 && __atomic_load_n(flag, __ATOMIC_SEQ_CST) == 0; i++)
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    return __atomic_load_n(flag, __ATOMIC_SEQ_CST);
}

/* In a callback nothing waits. The batcher has two rows. */
struct impatient {
    trefoil_batcher batcher;
    int done;
};
static void impatient(void *user, trefoil_status status, trefoil_output output)
{
    struct impatient *self = user;
    trefoil_row row = 0, second = 0, third = 0;
    trefoil_ticket ticket = 0;
    OK(status);
    OK(trefoil_release(output));
    OK(trefoil_batcher_row(self->batcher, NULL, &row));
    OK(trefoil_batcher_row(self->batcher, NULL, &second));
    EXPECT(trefoil_batcher_row(self->batcher, NULL, &third), TIMEOUT, NULL);
    OK(trefoil_release(second));
    /* A row leaves at once, and may be answered before it is looked at: but not each of a hundred. */
    trefoil_status waited = TREFOIL_STATUS_OK;
    for (int i = 0; i < 100 && waited == TREFOIL_STATUS_OK; i++) {
        if (i > 0)
            OK(trefoil_batcher_row(self->batcher, NULL, &row));
        OK(trefoil_row_submit(row, &ticket));
        waited = trefoil_wait(ticket, &output);
        if (waited == TREFOIL_STATUS_OK)
            OK(trefoil_release(output));
    }
    if (waited != TREFOIL_STATUS_IN_CALLBACK)
        wrong++, printf("line %d: %s\n", __LINE__, trefoil_status_name(waited));
    trefoil_status closed = trefoil_batcher_close(self->batcher, 0, UINT64_MAX);
    if (closed != TREFOIL_STATUS_OK && closed != TREFOIL_STATUS_TIMEOUT)
        wrong++, printf("line %d: %s\n", __LINE__, trefoil_status_name(closed));
    OK(trefoil_release(ticket));
    __atomic_store_n(&self->done, 1, __ATOMIC_SEQ_CST);
}

/* An aborted row is told of in no call of the program's, whose locks its callback may want. */
struct elsewhere {
    pthread_t caller;
    int done;
};
static void elsewhere(void *user, trefoil_status status, trefoil_output output)
{
    struct elsewhere *self = user;
    EXPECT(status, CLOSED, "closed");
    if (output != 0 || pthread_equal(self->caller, pthread_self()))
        wrong++, printf("called back within a call\n");
    __atomic_store_n(&self->done, 1, __ATOMIC_SEQ_CST);
}

/* Takes a lock of the program's. */
struct locked {
    pthread_mutex_t lock;
    int began;
    int done;
};
static void locked(void *user, trefoil_status status, trefoil_output output)
{
    struct locked *self = user;
    OK(status);
    OK(trefoil_release(output));
    __atomic_store_n(&self->began, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_lock(&self->lock);
    pthread_mutex_unlock(&self->lock);
    __atomic_add_fetch(&self->done, 1, __ATOMIC_SEQ_CST);
}

/* Waits for a free row. */
struct waits_for_room {
    trefoil_batcher batcher;
    trefoil_status status;
};
static void *wait_for_room(void *user)
{
    struct waits_for_room *self = user;
    trefoil_row row = 0;
    self->status = trefoil_batcher_row(self->batcher, NULL, &row);
    return NULL;
}

/* In a callback nothing waits, also not for what stays on the device. */
struct keeper {
    trefoil_device_output kept;
    trefoil_status waited[3];
    int done;
};
static void keep(void *user, trefoil_status status, trefoil_output output)
{
    struct keeper *self = user;
    OK(status);
    OK(trefoil_release(output));
    self->waited[0] = trefoil_device_output_wait(self->kept);
    self->waited[1] = trefoil_device_output_wait_on(self->kept, NULL);
    self->waited[2] = trefoil_device_output_is_ready(self->kept);
    __atomic_store_n(&self->done, 1, __ATOMIC_SEQ_CST);
}

/* On the CPU memory of the device is the host's, and the default stream is the calling thread. */
static void on_device(trefoil_model model, trefoil_device device, trefoil_engine without)
{
    enum { ROW = 28 * 28, PITCH = 800 };
    trefoil_engine engine = 0;
    trefoil_batch batch = 0;
    trefoil_ticket ticket = 0;
    trefoil_output output = 0;
    trefoil_device_output there = 0;
    trefoil_device other = 0;
    static unsigned char pixels[2 * PITCH], same[2 * ROW];
    const void *expected = NULL;
    size_t bytes = 0;
    for (int i = 0; i < ROW; i++)
        pixels[i] = same[i] = (unsigned char)(i * 7), pixels[PITCH + i] = same[ROW + i] = (unsigned char)(i * i);
    trefoil_engine_options options = {
        .size = sizeof options, .device = device, .batch = 2, .staging = 2, .results = 2, .check = 1, .device_results = 1};
    trefoil_device_rows rows = {.size = sizeof rows, .address = pixels, .row_pitch = PITCH};
    trefoil_device_output_info info = {.size = sizeof info};
    OK(trefoil_engine_build(model, &options, &engine));
    EXPECT(trefoil_device_is_unused(device), NOT_READY, NULL);

    EXPECT(trefoil_device_open_context(NULL, &other), NULL_POINTER, "context is null");
    EXPECT(trefoil_device_open_context(pixels, NULL), NULL_POINTER, "device is null");
    OK(trefoil_acquire(without, &batch));
    EXPECT(trefoil_submit_to_device(batch, 1, &there), INVALID_ARGUMENT, "device_results is off");
    OK(trefoil_release(batch)); /* as it was */

    OK(trefoil_acquire(engine, &batch));
    EXPECT(trefoil_batch_read_from(batch, NULL), NULL_POINTER, "rows is null");
    EXPECT(trefoil_batch_read_from(device, &rows), WRONG_KIND, NULL);
    rows.size = 3;
    EXPECT(trefoil_batch_read_from(batch, &rows), ABI_MISMATCH, "sizeof(trefoil_device_rows)");
    rows.size = sizeof rows;
    rows.address = NULL;
    EXPECT(trefoil_batch_read_from(batch, &rows), INVALID_ARGUMENT, "a null address");
    rows.address = pixels;
    rows.row_pitch = ROW - 1;
    EXPECT(trefoil_batch_read_from(batch, &rows), INVALID_ARGUMENT, "expected 784");
    rows.row_pitch = PITCH;
    rows.stream = pixels;
    EXPECT(trefoil_batch_read_from(batch, &rows), INVALID_ARGUMENT, "the CPU has no other");
    rows.stream = NULL;
    OK(trefoil_batch_read_from(batch, &rows));
    EXPECT(trefoil_submit_to_device(batch, 3, &there), INVALID_ARGUMENT, "expected 1 to 2");
    EXPECT(trefoil_submit_to_device(batch, 2, NULL), NULL_POINTER, "output is null");
    OK(trefoil_submit_to_device(batch, 2, &there));
    EXPECT(trefoil_submit_to_device(batch, 2, &there), RELEASED, NULL);
    EXPECT(trefoil_wait(there, &output), WRONG_KIND, NULL);
    EXPECT(trefoil_device_output_get_info(there, NULL), NULL_POINTER, "info is null");
    OK(trefoil_device_output_get_info(there, &info));
    if (info.rows != 2 || info.row_bytes != 40 || info.row_pitch != 256 || info.event != NULL || info.address == NULL)
        wrong++, printf("info: %zu rows of %zu in %zu\n", info.rows, info.row_bytes, info.row_pitch);
    EXPECT(trefoil_device_output_wait_on(there, pixels), INVALID_ARGUMENT, "the CPU has no other");
    EXPECT(trefoil_device_output_read_on(there, pixels), INVALID_ARGUMENT, "the CPU has no other");
    OK(trefoil_device_output_wait_on(there, NULL));
    OK(trefoil_device_output_is_ready(there));
    OK(trefoil_device_output_wait(there));

    /* the same rows by the host, and without gaps from the device to the host */
    rows = (trefoil_device_rows){.size = sizeof rows, .address = same};
    for (int from_device = 0; from_device < 2; from_device++) {
        OK(trefoil_acquire(engine, &batch));
        for (size_t i = 0; i < 2; i++) {
            void *row = NULL;
            OK(trefoil_batch_row(batch, i, &row, NULL));
            memcpy(row, pixels + (from_device ? 0 : i * PITCH), ROW);
        }
        if (from_device)
            OK(trefoil_batch_read_from(batch, &rows));
        OK(trefoil_submit(batch, 2, &ticket));
        OK(trefoil_wait(ticket, &output));
        for (size_t i = 0; i < 2; i++) {
            OK(trefoil_output_row(output, i, &expected, &bytes));
            if (bytes != info.row_bytes || memcmp((char *)info.address + i * info.row_pitch, expected, bytes) != 0)
                wrong++, printf("row %zu differs\n", i);
        }
        OK(trefoil_release(output));
    }
    OK(trefoil_device_output_read_on(there, NULL));
    OK(trefoil_release(there));
    EXPECT(trefoil_device_output_get_info(there, &info), RELEASED, NULL);
    EXPECT(trefoil_device_output_is_ready(there), RELEASED, NULL);
    EXPECT(trefoil_device_output_wait(there), RELEASED, NULL);

    /* a callback does not wait for what is behind it */
    struct keeper self = {0};
    trefoil_batch second = 0;
    OK(trefoil_acquire(engine, &batch));
    OK(trefoil_acquire(engine, &second));
    OK(trefoil_submit(batch, 1, &ticket));
    OK(trefoil_submit_to_device(second, 2, &self.kept));
    OK(trefoil_on_ready(ticket, keep, &self));
    if (!done(&self.done))
        wrong++, printf("no callback\n");
    for (int i = 0; i < 3; i++)
        if (self.waited[i] != TREFOIL_STATUS_OK
            && self.waited[i] != (i < 2 ? TREFOIL_STATUS_IN_CALLBACK : TREFOIL_STATUS_NOT_READY))
            wrong++, printf("%d: %s\n", i, trefoil_status_name(self.waited[i]));
    OK(trefoil_engine_close(engine, 0, 10ull * 1000 * 1000 * 1000));
    OK(trefoil_release(engine)); /* the output keeps what it is part of */
    OK(trefoil_device_output_wait(self.kept));
    OK(trefoil_release(self.kept));
}

/* Releases a batch that the main thread is about to submit. */
static trefoil_batch shared_batch;
static void count_calls(void *user, trefoil_status status, trefoil_output output)
{
    if (status == TREFOIL_STATUS_OK && trefoil_release(output) == TREFOIL_STATUS_OK)
        __atomic_add_fetch((int *)user, 1, __ATOMIC_SEQ_CST);
}

/* the same engine on two devices */
static void fleets(trefoil_model model)
{
    trefoil_device devices[2] = {0, 0};
    trefoil_fleet fleet = 0;
    trefoil_engine engine = 0;
    trefoil_batch batches[2] = {0, 0};
    trefoil_ticket ticket = 0;
    trefoil_output output = 0;
    size_t count = 0;
    OK(trefoil_device_open_cpu(1, &devices[0]));
    OK(trefoil_device_open_cpu(1, &devices[1]));
    EXPECT(trefoil_fleet_build(model, NULL, NULL, 2, 0, &fleet), NULL_POINTER, "devices is null");
    EXPECT(trefoil_fleet_build(model, NULL, devices, 0, 0, &fleet), INVALID_ARGUMENT, "devices is an empty list");
    EXPECT(trefoil_fleet_build(model, NULL, &model, 1, 0, &fleet), WRONG_KIND, "of a model, not of a device");
    EXPECT(trefoil_fleet_build(model, NULL, devices, 2, 0, NULL), NULL_POINTER, "fleet is null");
    trefoil_engine_options options = {.size = sizeof options, .device = devices[0]};
    EXPECT(trefoil_fleet_build(model, &options, devices, 2, 0, &fleet), INVALID_ARGUMENT, "device is set");
    options.device = 0, options.batch = 2, options.staging = 2;
    OK(trefoil_fleet_build(model, &options, devices, 2, 1, &fleet));

    EXPECT(trefoil_acquire(fleet, &batches[0]), WRONG_KIND, "is a handle of a fleet, not of a ");
    EXPECT(trefoil_fleet_acquire(devices[0], &batches[0]), WRONG_KIND, "is a handle of a device, not of a fleet");
    EXPECT(trefoil_fleet_acquire(fleet, NULL), NULL_POINTER, "batch is null");
    EXPECT(trefoil_fleet_acquire_within(0, 0, &batches[0]), INVALID_HANDLE, NULL);
    EXPECT(trefoil_fleet_acquire_for(fleet, NULL, 0, &batches[0]), NULL_POINTER, "wanted is null");
    EXPECT(trefoil_fleet_devices(fleet, NULL), NULL_POINTER, "count is null");
    OK(trefoil_fleet_devices(fleet, &count));
    EXPECT(trefoil_fleet_engine(fleet, count, &engine), INVALID_ARGUMENT, "index is 2: expected a device of 2");
    trefoil_fleet_stats stats = {.size = 1};
    EXPECT(trefoil_fleet_get_stats(fleet, 0, &stats), ABI_MISMATCH, "sizeof(trefoil_fleet_stats)");
    EXPECT(trefoil_fleet_get_stats(fleet, 2, &stats), INVALID_ARGUMENT, "index is 2");

    /* two batches at once go to two devices */
    for (int at = 0; at < 2; at++)
        OK(trefoil_fleet_acquire_within(fleet, 1000000000, &batches[at]));
    for (int at = 0; at < 2; at++) {
        OK(trefoil_submit(batches[at], 1, &ticket));
        OK(trefoil_wait(ticket, &output));
        OK(trefoil_release(output));
    }
    for (size_t at = 0; at < count; at++) {
        stats.size = sizeof stats;
        OK(trefoil_fleet_get_stats(fleet, at, &stats));
        if (stats.batches != 1 || stats.rows != 1 || stats.load != 0 || stats.rebuilt != 0 || stats.faulted != 0 ||
            stats.rebuilding != 0 || stats.fault_class != TREFOIL_FAULT_CLASS_REQUEST)
            wrong++, printf("a device of a fleet has done something else\n");
    }
    OK(trefoil_fleet_engine(fleet, 1, &engine));
    OK(trefoil_engine_capacity(engine, &count));
    if (count != 2)
        wrong++, printf("an engine of a fleet takes %zu rows\n", count);

    /* closing waits for the callbacks of all devices */
    int calls = 0;
    for (int at = 0; at < 4; at++) {
        OK(trefoil_fleet_acquire(fleet, &batches[0]));
        OK(trefoil_submit(batches[0], 1, &ticket));
        OK(trefoil_on_ready(ticket, count_calls, &calls));
    }
    EXPECT(trefoil_fleet_close(fleet, 2, 0), INVALID_ARGUMENT, "abort is 2");
    OK(trefoil_fleet_close(fleet, 0, UINT64_C(20000000000)));
    if (calls != 4)
        wrong++, printf("%d of 4 callbacks\n", calls);
    EXPECT(trefoil_fleet_acquire(fleet, &batches[0]), CLOSED, NULL);
    OK(trefoil_release(fleet));
    EXPECT(trefoil_fleet_close(fleet, 0, 0), RELEASED, NULL);
    OK(trefoil_release(engine));
    OK(trefoil_release(devices[0]));
    OK(trefoil_release(devices[1]));
}

static void *submit_shared(void *status)
{
    trefoil_ticket ticket = 0;
    *(trefoil_status *)status = trefoil_submit(shared_batch, 1, &ticket);
    if (ticket != 0)
        trefoil_release(ticket);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 64;
    trefoil_device device = 0, other = 0;
    trefoil_model model = 0;
    trefoil_engine engine = 0;
    trefoil_batch batch = 0;
    trefoil_ticket ticket = 0;
    trefoil_output output = 0;
    trefoil_batcher batcher = 0;
    trefoil_row row = 0;
    void *memory = NULL;
    const void *values = NULL;
    size_t size = 0;
    char text[32];

    /* versions */
    OK(trefoil_check_abi(TREFOIL_ABI_MAJOR, TREFOIL_ABI_MINOR));
    EXPECT(trefoil_check_abi(TREFOIL_ABI_MAJOR + 1, 0), ABI_MISMATCH, "compiled for interface 3.0");
    EXPECT(trefoil_check_abi(TREFOIL_ABI_MAJOR, TREFOIL_ABI_MINOR + 1), ABI_MISMATCH, "the library has");
    if (strlen(trefoil_version()) < 5 || strcmp(trefoil_status_name(12345), "unknown status") != 0)
        wrong++, printf("version or status name\n");
    pthread_t thread;
    void *length = NULL;
    pthread_create(&thread, NULL, other_message, NULL);
    pthread_join(thread, &length);
    if (length != NULL)
        wrong++, printf("a message of another thread\n");

    /* handles that never were */
    EXPECT(trefoil_release(0), INVALID_HANDLE, "0x0 is not a handle");
    EXPECT(trefoil_release(1), INVALID_HANDLE, "not a handle");
    EXPECT(trefoil_release(UINT64_MAX), INVALID_HANDLE, "not a handle");
    EXPECT(trefoil_wait(0, &output), INVALID_HANDLE, NULL);
    EXPECT(trefoil_acquire(0, &batch), INVALID_HANDLE, NULL);

    /* null pointers, texts and files */
    EXPECT(trefoil_device_open(NULL, &device), NULL_POINTER, "target is null");
    EXPECT(trefoil_device_open("cpu", NULL), NULL_POINTER, "device is null");
    EXPECT(trefoil_device_open("gpu", &device), INVALID_ARGUMENT, "`auto`, `cpu` or `cuda:N`");
    EXPECT(trefoil_device_open("\xff", &device), INVALID_ARGUMENT, "target is not UTF-8");
    EXPECT(trefoil_device_open_cpu(0, &device), INVALID_ARGUMENT, "threads is 0");
    EXPECT(trefoil_model_open(NULL, &model), NULL_POINTER, "path is null");
    EXPECT(trefoil_model_open("no/such/model", &model), IO, "no/such/model");
    EXPECT(trefoil_model_open("no/such/\xff", &model), IO, "no/such/");
    EXPECT(trefoil_model_open(argv[0], &model), FORMAT, NULL);
    OK(trefoil_device_open_cpu(2, &device));
    OK(trefoil_model_open(argv[1], &model));
    OK(trefoil_device_health(device));

    /* wrong kind */
    EXPECT(trefoil_device_health(model), WRONG_KIND, "is a handle of a model, not of a device");
    EXPECT(trefoil_acquire(device, &batch), WRONG_KIND, "is a handle of a device, not of a ");
    EXPECT(trefoil_engine_build(device, NULL, &engine), WRONG_KIND, NULL);

    /* structs */
    trefoil_engine_options options = {.size = sizeof options, .device = device, .batch = 2, .staging = 2, .results = 2};
    trefoil_device_info info = {.size = sizeof info};
    trefoil_model_info about = {.size = 0};
    EXPECT(trefoil_model_get_info(model, &about), ABI_MISMATCH, "sizeof(trefoil_model_info)");
    EXPECT(trefoil_model_get_info(model, NULL), NULL_POINTER, "info is null");
    about.size = sizeof about;
    OK(trefoil_model_get_info(model, &about));
    EXPECT(trefoil_device_get_info(device, NULL), NULL_POINTER, "info is null");
    OK(trefoil_device_get_info(device, &info));
    if (strcmp(info.name, "CPU") != 0 || info.units != 2 || about.height != 28 || about.classes != 10)
        wrong++, printf("infos: %s, %u, %u, %zu\n", info.name, info.units, about.height, about.classes);
    struct {
        trefoil_engine_options known;
        uint64_t added;
    } newer = {options, 0};
    newer.known.size = sizeof newer;
    newer.known.batch = 1;
    OK(trefoil_engine_build(model, &newer.known, &engine));
    OK(trefoil_release(engine));
    newer.added = 1;
    EXPECT(trefoil_engine_build(model, &newer.known, &engine), ABI_MISMATCH, "which this library does not know");
    options.size = 0;
    EXPECT(trefoil_engine_build(model, &options, &engine), ABI_MISMATCH, "sizeof(trefoil_engine_options)");
    options.size = sizeof options;
    options.input = 9;
    EXPECT(trefoil_engine_build(model, &options, &engine), INVALID_ARGUMENT, "input is 9");
    options.input = 0;
    options.result = 9;
    EXPECT(trefoil_engine_build(model, &options, &engine), INVALID_ARGUMENT, "result is 9");
    options.result = TREFOIL_RESULT_PROBABILITIES;
    options.top_k = 3;
    EXPECT(trefoil_engine_build(model, &options, &engine), INVALID_ARGUMENT, "top_k is 3");
    options.top_k = 0;
    options.check = 2;
    EXPECT(trefoil_engine_build(model, &options, &engine), INVALID_ARGUMENT, "check is 2");
    options.check = 1;
    options.waiting = 3;
    EXPECT(trefoil_engine_build(model, &options, &engine), INVALID_ARGUMENT, "waiting is 3");
    options.waiting = TREFOIL_WAITING_BLOCK;
    options.precision = 5;
    EXPECT(trefoil_engine_build(model, &options, &engine), INVALID_ARGUMENT, "precision is 5");
    options.precision = TREFOIL_PRECISION_AUTO;
    options.reserved = 1;
    EXPECT(trefoil_engine_build(model, &options, &engine), INVALID_ARGUMENT, "reserved is 1");
    options.reserved = 0;
    options.device_results = 2;
    EXPECT(trefoil_engine_build(model, &options, &engine), INVALID_ARGUMENT, "device_results is 2");
    if (trefoil_last_error_class() != TREFOIL_FAULT_CLASS_REQUEST)
        wrong++, printf("a wrong argument puts nothing out of use\n");
    options.device_results = 0;
    options.slots = 3, options.compute_streams = 2;
    EXPECT(trefoil_engine_build(model, &options, &engine), INVALID_ARGUMENT, "a multiple of the 2 compute streams");
    options.slots = options.compute_streams = 0;
    options.batch_size_count = 1;
    EXPECT(trefoil_engine_build(model, &options, &engine), NULL_POINTER, "batch_sizes is null");
    const size_t sizes[] = {2, 1};
    options.batch_sizes = sizes;
    options.batch_size_count = 2;
    options.slots = 1 << 20;
    EXPECT(trefoil_engine_build(model, &options, &engine), INVALID_ARGUMENT, "slots is 1048576");
    options.slots = 0;
    options.batch_size_count = 0;
    options.batch = SIZE_MAX;
    EXPECT(trefoil_engine_build(model, &options, &engine), INVALID_ARGUMENT, "batch is 18446744073709551615");
    options.batch = 2;
    options.batch_size_count = 2;
    EXPECT(trefoil_engine_build(model, &options, NULL), NULL_POINTER, "engine is null");
    OK(trefoil_engine_build(model, &options, &engine));

    /* an engine's own limit: the engine above has the default, which no delay of the tests reaches */
    options.acquire_limit_ns = 20 * 1000 * 1000;
    trefoil_engine hurried = 0;
    trefoil_batch first = 0, second = 0, third = 0;
    OK(trefoil_engine_build(model, &options, &hurried));
    OK(trefoil_acquire(hurried, &first));
    OK(trefoil_acquire(hurried, &second));
    EXPECT(trefoil_acquire(hurried, &third), TIMEOUT, "2 being filled");
    OK(trefoil_release(first));
    OK(trefoil_release(second));
    OK(trefoil_release(hurried));
    options.acquire_limit_ns = 0;

    /* models */
    EXPECT(trefoil_model_label(model, 10, text, sizeof text, NULL), INVALID_ARGUMENT, "below 10");
    EXPECT(trefoil_model_label(model, 9, NULL, 1, NULL), NULL_POINTER, "text is null");
    OK(trefoil_model_label(model, 9, text, 6, &size));
    if (strcmp(text, "ankle") != 0 || size != 10)
        wrong++, printf("label %s of %zu\n", text, size);
    EXPECT(trefoil_model_metadata(model, "names", text, sizeof text, NULL), INVALID_ARGUMENT, "has none of this name");
    EXPECT(trefoil_model_metadata(model, NULL, text, sizeof text, NULL), NULL_POINTER, "key is null");
    EXPECT(trefoil_model_cut(model, "no_such", &model), INVALID_ARGUMENT, "a node's name");

    /* engines */
    EXPECT(trefoil_trace_write(engine, "x.json"), INVALID_ARGUMENT, "trace_batches");
    EXPECT(trefoil_trace_report(engine, text, sizeof text, &size), INVALID_ARGUMENT, "trace_batches");
    EXPECT(trefoil_trace_report(model, text, sizeof text, &size), WRONG_KIND, NULL);
    trefoil_tensor tensor = {.size = 1};
    EXPECT(trefoil_engine_input(engine, NULL), NULL_POINTER, "tensor is null");
    EXPECT(trefoil_engine_input(engine, &tensor), ABI_MISMATCH, "sizeof(trefoil_tensor)");
    EXPECT(trefoil_engine_output(engine, NULL), NULL_POINTER, "tensor is null");
    EXPECT(trefoil_engine_output(engine, &tensor), ABI_MISMATCH, "sizeof(trefoil_tensor)");
    tensor.size = sizeof tensor;
    EXPECT(trefoil_engine_input(model, &tensor), WRONG_KIND, NULL);
    EXPECT(trefoil_engine_output(model, &tensor), WRONG_KIND, NULL);
    OK(trefoil_engine_output(engine, &tensor));
    if (tensor.row_bytes != 10 * sizeof(float))
        wrong++, printf("an output row of %zu bytes\n", tensor.row_bytes);
    EXPECT(trefoil_engine_device(engine, NULL), NULL_POINTER, "device is null");
    EXPECT(trefoil_engine_health(engine, NULL), NULL_POINTER, "health is null");
    EXPECT(trefoil_engine_batch_sizes(engine, NULL, 1, &size), NULL_POINTER, "sizes is null");
    size_t one = 0;
    OK(trefoil_engine_batch_sizes(engine, &one, 1, &size));
    if (one != 1 || size != 2)
        wrong++, printf("batch sizes %zu, %zu\n", one, size);

    /* batches */
    EXPECT(trefoil_acquire(engine, NULL), NULL_POINTER, "batch is null");
    OK(trefoil_acquire(engine, &batch));
    EXPECT(trefoil_batch_row(batch, 2, &memory, &size), INVALID_ARGUMENT, "below 2");
    EXPECT(trefoil_batch_row(batch, 0, NULL, &size), NULL_POINTER, "row is null");
    EXPECT(trefoil_submit(batch, 0, &ticket), INVALID_ARGUMENT, "rows is 0");
    EXPECT(trefoil_submit(batch, 3, &ticket), INVALID_ARGUMENT, "expected 1 to 2");
    EXPECT(trefoil_submit(batch, 1, NULL), NULL_POINTER, "ticket is null");
    OK(trefoil_batch_row(batch, 1, &memory, &size)); /* what failed left it as it was */
    tensor.size = sizeof tensor;
    OK(trefoil_engine_input(engine, &tensor));
    if (size != tensor.row_bytes)
        wrong++, printf("a row of %zu bytes, of %zu\n", size, tensor.row_bytes);
    OK(trefoil_acquire_within(engine, 1000, &shared_batch));
    EXPECT(trefoil_try_acquire(engine, &third), NOT_READY, NULL);
    EXPECT(trefoil_acquire_within(engine, 1000, &third), TIMEOUT, "2 being filled");
    if (third != 0)
        wrong++, printf("a failing call wrote its result\n");
    OK(trefoil_submit(batch, 2, &ticket));
    EXPECT(trefoil_submit(batch, 2, &ticket), RELEASED, "was released, or consumed");
    EXPECT(trefoil_batch_row(batch, 0, &memory, &size), RELEASED, NULL);
    EXPECT(trefoil_release(batch), RELEASED, NULL);

    /* one batch, two threads: one of them gets it */
    trefoil_status theirs = TREFOIL_STATUS_OK;
    pthread_create(&thread, NULL, submit_shared, &theirs);
    trefoil_status ours = trefoil_release(shared_batch);
    pthread_join(thread, NULL);
    if ((ours == TREFOIL_STATUS_OK) == (theirs == TREFOIL_STATUS_OK))
        wrong++, printf("ours %d, theirs %d\n", ours, theirs);

    /* tickets and outputs */
    EXPECT(trefoil_wait(ticket, NULL), NULL_POINTER, "output is null");
    EXPECT(trefoil_on_ready(ticket, NULL, NULL), NULL_POINTER, "callback is null");
    EXPECT(trefoil_wait(engine, &output), WRONG_KIND, "is a handle of a engine, not of a ticket");
    OK(trefoil_wait(ticket, &output));
    EXPECT(trefoil_wait(ticket, &output), RELEASED, NULL);
    EXPECT(trefoil_wait_for(ticket, 1, &output), RELEASED, NULL);
    EXPECT(trefoil_is_ready(ticket), RELEASED, NULL);
    EXPECT(trefoil_on_ready(ticket, nothing, NULL), RELEASED, NULL);
    trefoil_scored_class best[12];
    EXPECT(trefoil_output_row(output, 2, &values, NULL), INVALID_ARGUMENT, "below 2");
    EXPECT(trefoil_output_row(output, 0, NULL, NULL), NULL_POINTER, "row is null");
    EXPECT(trefoil_output_top_k(output, 0, NULL, 5, &size), NULL_POINTER, "classes is null");
    EXPECT(trefoil_output_top_k(output, 5, best, 5, &size), INVALID_ARGUMENT, "below 2");
    OK(trefoil_output_top_k(output, 1, best, 12, &size));
    if (size != 10)
        wrong++, printf("%zu of 10 classes\n", size);
    for (size_t i = 1; i < size; i++)
        if (best[i].value > best[i - 1].value ||
            (best[i].value == best[i - 1].value && best[i].index < best[i - 1].index))
            wrong++, printf("class %zu out of order\n", i);
    OK(trefoil_output_top_k(output, 1, best, 0, &size));
    OK(trefoil_release(output));
    EXPECT(trefoil_release(output), RELEASED, NULL);
    EXPECT(trefoil_output_row(output, 0, &values, NULL), RELEASED, NULL);

    /* rows and results on the device */
    on_device(model, device, engine);
    fleets(model);

    /* batchers */
    trefoil_batcher_options few = {.size = sizeof few, .rows = 1, .when_full = 7};
    trefoil_row_options urgent = {.size = sizeof urgent, .high_priority = 3};
    static unsigned char pixels[28 * 28];
    EXPECT(trefoil_batcher_build(engine, &few, &batcher), INVALID_ARGUMENT, "when_full is 7");
    few.when_full = TREFOIL_WHEN_FULL_REJECT;
    few.in_flight = SIZE_MAX;
    EXPECT(trefoil_batcher_build(engine, &few, &batcher), INVALID_ARGUMENT, "in_flight is 18446744073709551615");
    few.in_flight = 0;
    OK(trefoil_batcher_build(engine, &few, &batcher));
    trefoil_batcher_stats stats = {.size = 1};
    EXPECT(trefoil_batcher_get_stats(batcher, NULL), NULL_POINTER, "stats is null");
    EXPECT(trefoil_batcher_get_stats(batcher, &stats), ABI_MISMATCH, "sizeof(trefoil_batcher_stats)");
    stats.size = sizeof stats;
    EXPECT(trefoil_batcher_get_stats(engine, &stats), WRONG_KIND, NULL);
    EXPECT(trefoil_batcher_submit(batcher, NULL, pixels, 3, &ticket), INVALID_ARGUMENT, "expected 784");
    EXPECT(trefoil_batcher_submit(batcher, NULL, NULL, 784, &ticket), NULL_POINTER, "row is null");
    EXPECT(trefoil_batcher_submit(batcher, &urgent, pixels, 784, &ticket), INVALID_ARGUMENT, "high_priority is 3");
    urgent.high_priority = 1;
    const void *many[] = {pixels, pixels, NULL};
    unsigned char copied[40];
    EXPECT(trefoil_batcher_submit_rows(batcher, NULL, NULL, 2, 784, &ticket), NULL_POINTER, "rows is null");
    EXPECT(trefoil_batcher_submit_rows(batcher, NULL, many, 3, 784, &ticket), NULL_POINTER, "row is null");
    EXPECT(trefoil_batcher_submit_rows(batcher, NULL, many, 0, 784, &ticket), INVALID_ARGUMENT, "count is 0");
    EXPECT(trefoil_batcher_submit_rows(batcher, NULL, many, 2, 3, &ticket), INVALID_ARGUMENT, "expected 784");
    EXPECT(trefoil_batcher_submit_rows(batcher, NULL, many, 2, 784, NULL), NULL_POINTER, "ticket is null");
    OK(trefoil_batcher_row(batcher, &urgent, &row));
    EXPECT(trefoil_batcher_row(batcher, NULL, &third), FULL, "all 1 rows");
    OK(trefoil_batcher_submit_rows(batcher, NULL, many, 2, 784, &ticket));
    EXPECT(trefoil_wait(ticket, &output), FULL, "all 1 rows");
    EXPECT(trefoil_row_memory(row, NULL, NULL), NULL_POINTER, "memory is null");
    OK(trefoil_row_memory(row, &memory, &size));
    memset(memory, 1, size);
    EXPECT(trefoil_row_submit(row, NULL), NULL_POINTER, "ticket is null");
    OK(trefoil_row_submit(row, &ticket));
    EXPECT(trefoil_row_submit(row, &ticket), RELEASED, NULL);
    EXPECT(trefoil_row_memory(row, &memory, &size), RELEASED, NULL);
    OK(trefoil_wait(ticket, &output));
    OK(trefoil_output_rows(output, &size));
    EXPECT(trefoil_output_row(output, 1, &values, NULL), INVALID_ARGUMENT, "below 1");
    EXPECT(trefoil_output_copy(output, 0, 1, NULL, 40), NULL_POINTER, "values is null");
    EXPECT(trefoil_output_copy(output, 0, 1, copied, 39), INVALID_ARGUMENT, "expected 40");
    EXPECT(trefoil_output_copy(output, 0, SIZE_MAX, copied, 40), INVALID_ARGUMENT, "below 1");
    EXPECT(trefoil_output_copy(output, SIZE_MAX, 1, copied, 0), INVALID_ARGUMENT, "there are no 1 rows");
    OK(trefoil_output_copy(output, 0, 1, copied, sizeof copied));
    uint32_t result = 9;
    EXPECT(trefoil_output_rows(output, NULL), NULL_POINTER, "rows is null");
    EXPECT(trefoil_output_result(output, NULL), NULL_POINTER, "result is null");
    OK(trefoil_output_result(output, &result));
    if (result != TREFOIL_RESULT_PROBABILITIES)
        wrong++, printf("result %u\n", result);
    OK(trefoil_release(output));
    OK(trefoil_batcher_close(batcher, 0, 10ull * 1000 * 1000 * 1000));
    EXPECT(trefoil_batcher_submit(batcher, NULL, pixels, 784, &ticket), CLOSED, "closed");
    OK(trefoil_release(batcher));
    EXPECT(trefoil_batcher_row(batcher, NULL, &row), RELEASED, NULL);
    EXPECT(trefoil_batcher_get_stats(batcher, &stats), RELEASED, NULL);

    /* callbacks */
    struct impatient self = {0};
    trefoil_batcher_options waits = {.size = sizeof waits, .rows = 2};
    OK(trefoil_batcher_build(engine, &waits, &self.batcher));
    OK(trefoil_batcher_submit(self.batcher, NULL, pixels, 784, &ticket));
    OK(trefoil_on_ready(ticket, impatient, &self));
    EXPECT(trefoil_wait(ticket, &output), RELEASED, NULL);
    if (!done(&self.done))
        wrong++, printf("no callback\n");
    OK(trefoil_batcher_close(self.batcher, 0, 10ull * 1000 * 1000 * 1000));
    OK(trefoil_release(self.batcher));
    struct elsewhere from = {.caller = pthread_self()};
    enum { CROWD = 4000 }; /* in the queue before the row that is aborted */
    static const void *crowd[CROWD];
    for (int i = 0; i < CROWD; i++)
        crowd[i] = pixels;
    trefoil_ticket before;
    waits = (trefoil_batcher_options){.size = sizeof waits, .rows = CROWD + 1};
    OK(trefoil_batcher_build(engine, &waits, &batcher));
    OK(trefoil_batcher_submit_rows(batcher, NULL, crowd, CROWD, 784, &before));
    OK(trefoil_batcher_submit(batcher, NULL, pixels, 784, &ticket));
    OK(trefoil_on_ready(ticket, elsewhere, &from));
    OK(trefoil_batcher_close(batcher, 1, 10ull * 1000 * 1000 * 1000));
    OK(trefoil_release(before));
    if (__atomic_load_n(&from.done, __ATOMIC_SEQ_CST) != 1)
        wrong++, printf("closed before the callback of an aborted row had returned\n");
    OK(trefoil_release(batcher));

    /* A callback that waits for a lock of the program's holds up callbacks, and nothing else. */
    struct locked held = {.lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_mutex_lock(&held.lock);
    waits = (trefoil_batcher_options){.size = sizeof waits, .rows = 4, .max_delay_ns = 1};
    OK(trefoil_batcher_build(engine, &waits, &batcher));
    OK(trefoil_batcher_submit(batcher, NULL, pixels, 784, &ticket));
    OK(trefoil_on_ready(ticket, locked, &held));
    OK(trefoil_acquire(engine, &batch));
    OK(trefoil_submit(batch, 1, &ticket));
    OK(trefoil_on_ready(ticket, locked, &held));
    if (!done(&held.began))
        wrong++, printf("no callback began\n");
    for (int i = 0; i < 20; i++) {
        OK(trefoil_batcher_submit(batcher, NULL, pixels, 784, &ticket));
        OK(trefoil_wait(ticket, &output));
        OK(trefoil_release(output));
    }
    EXPECT(trefoil_batcher_close(batcher, 0, 200 * 1000 * 1000), TIMEOUT, "callbacks have not returned");
    pthread_mutex_unlock(&held.lock);
    OK(trefoil_batcher_close(batcher, 0, 10ull * 1000 * 1000 * 1000));
    if (__atomic_load_n(&held.done, __ATOMIC_SEQ_CST) < 1)
        wrong++, printf("closed before its callback had returned\n");
    OK(trefoil_release(batcher));

    /* A batcher that is released lets go of those who wait for room in it. */
    waits = (trefoil_batcher_options){.size = sizeof waits, .rows = 1, .max_delay_ns = 1};
    OK(trefoil_batcher_build(engine, &waits, &batcher));
    OK(trefoil_batcher_row(batcher, NULL, &row));
    struct waits_for_room room = {.batcher = batcher};
    pthread_create(&thread, NULL, wait_for_room, &room);
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000 * 1000}, NULL);
    OK(trefoil_release(batcher));
    pthread_join(thread, NULL);
    if (room.status != TREFOIL_STATUS_CLOSED && room.status != TREFOIL_STATUS_RELEASED)
        wrong++, printf("a wait for room ended with %s\n", trefoil_status_name(room.status));
    OK(trefoil_release(row));

    /* closing: callbacks are answered too, and what was lent before is refused */
    int closed = 0;
    OK(trefoil_acquire(engine, &batch));
    OK(trefoil_submit(batch, 1, &ticket));
    OK(trefoil_acquire(engine, &batch));
    EXPECT(trefoil_engine_close(engine, 5, 0), INVALID_ARGUMENT, "abort is 5");
    OK(trefoil_engine_close(engine, 1, 10ull * 1000 * 1000 * 1000));
    EXPECT(trefoil_acquire(engine, &third), CLOSED, "closed");
    trefoil_health health = {.size = sizeof health};
    OK(trefoil_engine_health(engine, &health));
    if (health.faulted != 0 || health.closed != 1 || health.filling != 1 || health.staging != 2)
        wrong++, printf("health: %u, %u, %zu, %zu\n", health.faulted, health.closed, health.filling, health.staging);
    EXPECT(trefoil_submit(batch, 1, &third), CLOSED, "closed");
    OK(trefoil_is_ready(ticket)); /* its failure is there */
    OK(trefoil_on_ready(ticket, count, &closed));
    if (done(&closed) != 1)
        wrong++, printf("%d callbacks of a closed engine\n", closed);

    /* a device under two handles */
    OK(trefoil_engine_device(engine, &other));
    OK(trefoil_release(engine));
    EXPECT(trefoil_engine_capacity(engine, &size), RELEASED, NULL);
    EXPECT(trefoil_engine_input(engine, &tensor), RELEASED, NULL);
    EXPECT(trefoil_trace_report(engine, text, sizeof text, &size), RELEASED, NULL);
    OK(trefoil_release(device));
    EXPECT(trefoil_device_health(device), RELEASED, NULL);
    OK(trefoil_device_health(other));

    /* all memory comes home, once the last threads of the batcher and the ring are gone */
    for (int i = 0; i < 1000; i++) {
        OK(trefoil_device_get_info(other, &info));
        if (info.device_bytes_used + info.page_locked_bytes_used == 0
            && trefoil_device_is_unused(other) == TREFOIL_STATUS_OK)
            break;
        nanosleep(&(struct timespec){.tv_nsec = 10 * 1000 * 1000}, NULL);
    }
    if (info.device_bytes_used + info.page_locked_bytes_used != 0)
        wrong++, printf("%llu bytes are left\n", (unsigned long long)info.page_locked_bytes_used);
    OK(trefoil_device_is_unused(other));
    OK(trefoil_release(other));
    OK(trefoil_release(model));
    EXPECT(trefoil_release(model), RELEASED, NULL);
    EXPECT(trefoil_log(9, NULL, NULL), INVALID_ARGUMENT, "level is 9");

    printf("%s\n", wrong == 0 ? "every misuse was told" : "FAILED");
    return wrong != 0;
}
