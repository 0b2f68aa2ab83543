/* A model of several inputs and outputs of different types, its ports used as they are meant and misused in every way that
 * is told: values VALUES.onnx IMAGES */
#include <string.h>

#include "expect.h"

#define HOLDS(condition) \
    do { \
        if (!(condition)) \
            wrong++, printf("line %d: %s\n", __LINE__, #condition); \
    } while (0)

enum { N = 3, ROWS = 2 };

/* What one row asks, and what it gets: names, types and sizes are those of the file. */
static const float numbers[ROWS][N] = {{0.25f, 1.0f, -2.0f}, {0.75f, 0.5f, 8.0f}};
static const int64_t shifts[ROWS] = {3, -1};

static void opened(const char *path, trefoil_model *model)
{
    const char *names[] = {"n", NULL}, *unknown[] = {"n", "m"};
    const size_t sizes[] = {N, 1};
    EXPECT(trefoil_model_open_at(NULL, names, sizes, 1, model), NULL_POINTER, "path is null");
    EXPECT(trefoil_model_open_at(path, NULL, sizes, 1, model), NULL_POINTER, "names is null");
    EXPECT(trefoil_model_open_at(path, names, NULL, 1, model), NULL_POINTER, "values is null");
    EXPECT(trefoil_model_open_at(path, names, sizes, 2, model), NULL_POINTER, "a name of `names` is null");
    EXPECT(trefoil_model_open_at(path, names, sizes, 1, NULL), NULL_POINTER, "model is null");
    EXPECT(trefoil_model_open_at(path, NULL, NULL, 0, model), INVALID_ARGUMENT, "`n`");
    EXPECT(trefoil_model_open_at(path, unknown, sizes, 2, model), INVALID_ARGUMENT, "sizes is `m`");
    EXPECT(trefoil_model_open(path, model), INVALID_ARGUMENT, "`n`");
    OK(trefoil_model_open_at(path, names, sizes, 1, model));

    trefoil_model_info info = {.size = sizeof info};
    OK(trefoil_model_get_info(*model, &info));
    HOLDS(strcmp(info.name, "values") == 0 && info.classes == 0);
    HOLDS(info.height == 0 && info.width == 0 && info.channels == 0 && info.resize == 0);
}

/* The port of a name is the one of its number, and what the file says. */
static size_t input(trefoil_engine engine, const char *name, uint32_t dtype, size_t offset, size_t bytes)
{
    size_t index = 99;
    trefoil_port port = {.size = sizeof port};
    OK(trefoil_engine_find_input(engine, name, &index));
    OK(trefoil_engine_input_port(engine, index, &port));
    HOLDS(strcmp(port.name, name) == 0 && port.name_bytes == strlen(name) && port.dtype == dtype);
    HOLDS(port.rank == 1 && port.dims[0] == port.elements && port.dims[1] == 0);
    HOLDS(port.offset == offset && port.bytes == bytes);
    return index;
}

static size_t output_of(trefoil_engine engine, const char *name, uint32_t dtype, size_t offset, size_t bytes)
{
    size_t index = 99;
    trefoil_port port = {.size = sizeof port};
    OK(trefoil_engine_find_output(engine, name, &index));
    OK(trefoil_engine_output_port(engine, index, &port));
    HOLDS(strcmp(port.name, name) == 0 && port.dtype == dtype && port.offset == offset && port.bytes == bytes);
    return index;
}

static void descriptions(trefoil_engine engine, trefoil_model model)
{
    size_t count = 0, index = 0;
    trefoil_port port = {.size = sizeof port};
    OK(trefoil_engine_input_ports(engine, &count));
    HOLDS(count == 2);
    OK(trefoil_engine_output_ports(engine, &count));
    HOLDS(count == 3);
    EXPECT(trefoil_engine_input_ports(engine, NULL), NULL_POINTER, "count is null");
    EXPECT(trefoil_engine_output_ports(engine, NULL), NULL_POINTER, "count is null");
    EXPECT(trefoil_engine_input_ports(model, &count), WRONG_KIND, NULL);
    EXPECT(trefoil_engine_output_ports(model, &count), WRONG_KIND, NULL);
    EXPECT(trefoil_engine_input_port(engine, 2, &port), INVALID_ARGUMENT, "port is 2: expected one of `numbers`, `shift`");
    EXPECT(trefoil_engine_output_port(engine, 3, &port), INVALID_ARGUMENT, "`doubled`");
    EXPECT(trefoil_engine_input_port(engine, 0, NULL), NULL_POINTER, "port is null");
    EXPECT(trefoil_engine_output_port(engine, 0, NULL), NULL_POINTER, "port is null");
    EXPECT(trefoil_engine_find_input(engine, "sums", &index), INVALID_ARGUMENT, "port is `sums`: expected one of `numbers`");
    EXPECT(trefoil_engine_find_output(engine, "shift", &index), INVALID_ARGUMENT, "`doubled`");
    EXPECT(trefoil_engine_find_input(engine, NULL, &index), NULL_POINTER, "name is null");
    EXPECT(trefoil_engine_find_output(engine, "sums", NULL), NULL_POINTER, "index is null");
    port.size = 4;
    EXPECT(trefoil_engine_input_port(engine, 0, &port), ABI_MISMATCH, "sizeof(trefoil_port)");
    EXPECT(trefoil_engine_output_port(engine, 0, &port), ABI_MISMATCH, "sizeof(trefoil_port)");
}

/* Reads one row of an output, and compares it with what the numbers give. */
static void read_row(trefoil_engine engine, trefoil_output output, size_t at, size_t row)
{
    const size_t sums = output_of(engine, "sums", TREFOIL_DTYPE_F32, 0, N * sizeof(float));
    const size_t large = output_of(engine, "large", TREFOIL_DTYPE_BOOL, 16, N);
    const size_t doubled = output_of(engine, "doubled", TREFOIL_DTYPE_I64, 32, sizeof(int64_t));
    const void *found = NULL, *is_large = NULL, *twice = NULL;
    size_t bytes = 0;
    OK(trefoil_output_port(output, at, sums, TREFOIL_DTYPE_F32, &found, &bytes));
    HOLDS(bytes == N * sizeof(float));
    OK(trefoil_output_port(output, at, large, TREFOIL_DTYPE_BOOL, &is_large, &bytes));
    HOLDS(bytes == N);
    OK(trefoil_output_port(output, at, doubled, TREFOIL_DTYPE_I64, &twice, NULL));
    for (size_t i = 0; i < N; i++) {
        HOLDS(((const float *)found)[i] == numbers[row][i] + (float)shifts[row]);
        HOLDS(((const unsigned char *)is_large)[i] == (numbers[row][i] > 0.5f));
    }
    HOLDS(*(const int64_t *)twice == 2 * shifts[row]);

    EXPECT(trefoil_output_port(output, at, 3, TREFOIL_DTYPE_F32, &found, &bytes), INVALID_ARGUMENT, "one of `sums`");
    EXPECT(trefoil_output_port(output, at, large, TREFOIL_DTYPE_U8, &found, &bytes), INVALID_ARGUMENT,
           "port is `large` of bool[3]: expected elements of u8");
    EXPECT(trefoil_output_port(output, 9, sums, TREFOIL_DTYPE_F32, &found, &bytes), INVALID_ARGUMENT, "row 9: expected one below");
    EXPECT(trefoil_output_port(output, at, sums, TREFOIL_DTYPE_F32, NULL, &bytes), NULL_POINTER, "elements is null");
}

static void batches(trefoil_engine engine)
{
    const size_t to_numbers = input(engine, "numbers", TREFOIL_DTYPE_F32, 0, N * sizeof(float));
    const size_t to_shift = input(engine, "shift", TREFOIL_DTYPE_I64, 16, sizeof(int64_t));
    trefoil_batch batch = 0;
    trefoil_ticket ticket = 0;
    trefoil_output output = 0;
    void *elements = NULL;
    size_t bytes = 0;
    OK(trefoil_acquire(engine, &batch));
    EXPECT(trefoil_batch_port(batch, ROWS, 0, TREFOIL_DTYPE_F32, &elements, &bytes), INVALID_ARGUMENT, "row 2: expected one below 2");
    EXPECT(trefoil_batch_port(batch, 0, 2, TREFOIL_DTYPE_F32, &elements, &bytes), INVALID_ARGUMENT, "port is 2");
    EXPECT(trefoil_batch_port(batch, 0, to_numbers, TREFOIL_DTYPE_F64, &elements, &bytes), INVALID_ARGUMENT,
           "port is `numbers` of f32[3]: expected elements of f64");
    EXPECT(trefoil_batch_port(batch, 0, to_numbers, 99, &elements, &bytes), INVALID_ARGUMENT, "dtype is 99");
    EXPECT(trefoil_batch_port(batch, 0, to_numbers, TREFOIL_DTYPE_F32, NULL, &bytes), NULL_POINTER, "elements is null");
    HOLDS(elements == NULL && bytes == 0); /* what failed wrote nothing */
    for (size_t row = 0; row < ROWS; row++) {
        OK(trefoil_batch_port(batch, row, to_numbers, TREFOIL_DTYPE_F32, &elements, &bytes));
        HOLDS(bytes == sizeof numbers[row]);
        memcpy(elements, numbers[row], bytes);
        OK(trefoil_batch_port(batch, row, to_shift, TREFOIL_DTYPE_I64, &elements, NULL));
        memcpy(elements, &shifts[row], sizeof shifts[row]);
    }
    OK(trefoil_submit(batch, ROWS, &ticket));
    EXPECT(trefoil_batch_port(batch, 0, 0, TREFOIL_DTYPE_F32, &elements, &bytes), RELEASED, NULL);
    OK(trefoil_wait(ticket, &output));
    for (size_t row = 0; row < ROWS; row++)
        read_row(engine, output, row, row);
    OK(trefoil_release(output));
    const void *gone = NULL;
    EXPECT(trefoil_output_port(output, 0, 0, TREFOIL_DTYPE_F32, &gone, NULL), RELEASED, NULL);
}

static void single_rows(trefoil_engine engine)
{
    trefoil_batcher batcher = 0;
    OK(trefoil_batcher_build(engine, NULL, &batcher));
    for (size_t at = 0; at < ROWS; at++) {
        trefoil_row row = 0;
        trefoil_ticket ticket = 0;
        trefoil_output output = 0;
        void *elements = NULL;
        size_t bytes = 0;
        OK(trefoil_batcher_row(batcher, NULL, &row));
        EXPECT(trefoil_row_port(row, 5, TREFOIL_DTYPE_F32, &elements, &bytes), INVALID_ARGUMENT, "port is 5");
        EXPECT(trefoil_row_port(row, 1, TREFOIL_DTYPE_F32, &elements, &bytes), INVALID_ARGUMENT,
               "port is `shift` of i64[1]: expected elements of f32");
        EXPECT(trefoil_row_port(row, 0, TREFOIL_DTYPE_F32, NULL, &bytes), NULL_POINTER, "elements is null");
        OK(trefoil_row_port(row, 0, TREFOIL_DTYPE_F32, &elements, &bytes));
        HOLDS(bytes == sizeof numbers[at]);
        memcpy(elements, numbers[at], bytes);
        OK(trefoil_row_port(row, 1, TREFOIL_DTYPE_I64, &elements, NULL));
        memcpy(elements, &shifts[at], sizeof shifts[at]);
        OK(trefoil_row_submit(row, &ticket));
        EXPECT(trefoil_row_port(row, 0, TREFOIL_DTYPE_F32, &elements, &bytes), RELEASED, NULL);
        OK(trefoil_wait(ticket, &output));
        read_row(engine, output, 0, at);
        OK(trefoil_release(output));
    }
    OK(trefoil_release(batcher));
}

/* Rows of this many numbers, and of the same filled up with ones. */
static void check_sums(trefoil_output output, size_t row, size_t given, size_t all)
{
    const void *found = NULL;
    size_t bytes = 0;
    OK(trefoil_output_port(output, row, 0, TREFOIL_DTYPE_F32, &found, &bytes));
    HOLDS(bytes == all * sizeof(float));
    for (size_t i = 0; i < all; i++)
        HOLDS(((const float *)found)[i] == (i < given ? 0.5f * (float)i : 1.0f) + 2.0f);
}

/* An engine of two sizes, whose rows may be shorter: {2, n = 3} and {1, n = 5}. */
static void several_sizes(trefoil_model model, trefoil_device device)
{
    const char *n[] = {"n"}, *unknown[] = {"m"}, *padded_inputs[] = {"numbers", NULL};
    const size_t three = 3, five = 5, four = 4, six = 6;
    const double ones[] = {1.0, 1.0};
    const trefoil_size small = {.size = sizeof small, .batch = 2, .names = n, .values = &three, .count = 1};
    const trefoil_size large = {.size = sizeof large, .batch = 1, .names = n, .values = &five, .count = 1};
    trefoil_size asked = {.size = sizeof asked, .batch = 1, .names = n, .values = &four, .count = 1};
    const trefoil_size *sizes[] = {&small, &large, NULL};
    const float numbers_of[] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f};
    const int64_t shift = 2;
    trefoil_model padded = 0;
    trefoil_engine engine = 0;
    trefoil_batch batch = 0;
    trefoil_row row = 0;
    trefoil_batcher batcher = 0;
    trefoil_ticket ticket = 0;
    trefoil_output output = 0;
    trefoil_batch_info info = {.size = sizeof info};
    trefoil_port port = {.size = sizeof port};

    EXPECT(trefoil_model_padded(model, "m", padded_inputs, ones, 1, &padded), INVALID_ARGUMENT, "`n`");
    EXPECT(trefoil_model_padded(model, NULL, padded_inputs, ones, 1, &padded), NULL_POINTER, "dim is null");
    EXPECT(trefoil_model_padded(model, "n", padded_inputs, ones, 2, &padded), NULL_POINTER, "a name of `names` is null");
    EXPECT(trefoil_model_padded(model, "n", padded_inputs, NULL, 1, &padded), NULL_POINTER, "values is null");
    OK(trefoil_model_padded(model, "n", padded_inputs, ones, 1, &padded));
    trefoil_engine_options options = {.size = sizeof options, .device = device, .check = 1, .sizes = sizes, .size_count = 3};
    EXPECT(trefoil_engine_build(padded, &options, &engine), NULL_POINTER, "a size of `sizes` is null");
    options.size_count = 2;
    OK(trefoil_engine_build(padded, &options, &engine));

    EXPECT(trefoil_acquire_for(engine, NULL, UINT64_MAX, &batch), NULL_POINTER, "wanted is null");
    EXPECT(trefoil_acquire_for(engine, &asked, UINT64_MAX, NULL), NULL_POINTER, "batch is null");
    asked.values = &six;
    EXPECT(trefoil_acquire_for(engine, &asked, UINT64_MAX, &batch), INVALID_ARGUMENT, "batch=2,n=3; batch=1,n=5");
    asked.names = unknown;
    EXPECT(trefoil_acquire_for(engine, &asked, UINT64_MAX, &batch), INVALID_ARGUMENT, "size is batch=1,m=6");
    asked.names = n, asked.values = &four;

    /* Four numbers take the size of five. */
    OK(trefoil_acquire_for(engine, &asked, UINT64_MAX, &batch));
    OK(trefoil_batch_get_info(batch, &info));
    HOLDS(info.capacity == 1 && info.ports == 2 && info.row_bytes == 32 + 8 && info.row_pitch == 256);
    OK(trefoil_batch_describe_port(batch, 0, &port));
    HOLDS(port.rank == 1 && port.dims[0] == 5 && port.bytes == 5 * sizeof(float));
    EXPECT(trefoil_batch_get_info(batch, NULL), NULL_POINTER, "info is null");
    EXPECT(trefoil_batch_describe_port(batch, 2, &port), INVALID_ARGUMENT, "port is 2");
    EXPECT(trefoil_batch_write_port(batch, 1, 0, TREFOIL_DTYPE_F32, numbers_of, 4), INVALID_ARGUMENT, "row 1");
    EXPECT(trefoil_batch_write_port(batch, 0, 0, TREFOIL_DTYPE_I64, numbers_of, 16), INVALID_ARGUMENT, "elements of i64");
    EXPECT(trefoil_batch_write_port(batch, 0, 0, TREFOIL_DTYPE_F32, NULL, 16), NULL_POINTER, "elements is null");
    EXPECT(trefoil_batch_write_port(batch, 0, 0, TREFOIL_DTYPE_F32, numbers_of, 18), INVALID_ARGUMENT, "along axis 0");
    OK(trefoil_batch_write_port(batch, 0, 0, TREFOIL_DTYPE_F32, numbers_of, 4 * sizeof(float)));
    OK(trefoil_batch_write_port(batch, 0, 1, TREFOIL_DTYPE_I64, &shift, sizeof shift));
    OK(trefoil_submit(batch, 1, &ticket));
    OK(trefoil_wait(ticket, &output));
    OK(trefoil_output_describe_port(output, 0, &port));
    HOLDS(strcmp(port.name, "sums") == 0 && port.dims[0] == 5);
    EXPECT(trefoil_output_describe_port(output, 3, &port), INVALID_ARGUMENT, "`doubled`");
    check_sums(output, 0, 4, 5);
    OK(trefoil_release(output));

    /* Two rows of one number take the size of three, which is the first, too. */
    OK(trefoil_acquire(engine, &batch));
    OK(trefoil_batch_get_info(batch, &info));
    HOLDS(info.capacity == 2);
    for (size_t at = 0; at < 2; at++) {
        OK(trefoil_batch_write_port(batch, at, 0, TREFOIL_DTYPE_F32, numbers_of, (at + 1) * sizeof(float)));
        OK(trefoil_batch_write_port(batch, at, 1, TREFOIL_DTYPE_I64, &shift, sizeof shift));
    }
    OK(trefoil_submit(batch, 2, &ticket));
    OK(trefoil_wait(ticket, &output));
    check_sums(output, 0, 1, 3);
    check_sums(output, 1, 2, 3);
    OK(trefoil_release(output));

    OK(trefoil_batcher_build(engine, NULL, &batcher));
    const trefoil_row_options of_row = {.size = sizeof of_row, .at = &asked};
    OK(trefoil_batcher_row(batcher, &of_row, &row));
    OK(trefoil_row_describe_port(row, 0, &port));
    HOLDS(port.dims[0] == 5);
    EXPECT(trefoil_row_describe_port(row, 2, &port), INVALID_ARGUMENT, "port is 2");
    EXPECT(trefoil_row_write_port(row, 0, TREFOIL_DTYPE_F32, NULL, 16), NULL_POINTER, "elements is null");
    OK(trefoil_row_write_port(row, 0, TREFOIL_DTYPE_F32, numbers_of, 4 * sizeof(float)));
    OK(trefoil_row_write_port(row, 1, TREFOIL_DTYPE_I64, &shift, sizeof shift));
    OK(trefoil_row_submit(row, &ticket));
    OK(trefoil_wait(ticket, &output));
    check_sums(output, 0, 4, 5);
    OK(trefoil_release(output));
    asked.values = &six;
    EXPECT(trefoil_batcher_row(batcher, &of_row, &row), INVALID_ARGUMENT, "batch=1,n=5");
    OK(trefoil_release(batcher));
    OK(trefoil_release(engine));
    OK(trefoil_release(padded));
}

/* The numbers are a state, to which each batch adds its shift. */
static void with_state(trefoil_model model, trefoil_device device)
{
    trefoil_model recurrent = 0;
    trefoil_engine engine = 0;
    trefoil_batcher batcher = 0;
    size_t count = 0;
    float state[N] = {9.0f}, start[N] = {0.5f, 1.5f, 2.5f};
    EXPECT(trefoil_model_with_state(model, "numbers", "large", &recurrent), INVALID_ARGUMENT, "as the input is");
    EXPECT(trefoil_model_with_state(model, "n", "sums", &recurrent), INVALID_ARGUMENT, "one of `numbers`");
    EXPECT(trefoil_model_with_state(model, NULL, "sums", &recurrent), NULL_POINTER, "input is null");
    EXPECT(trefoil_model_with_state(model, "numbers", NULL, &recurrent), NULL_POINTER, "output is null");
    EXPECT(trefoil_model_with_state(model, "numbers", "sums", NULL), NULL_POINTER, "with_state is null");
    OK(trefoil_model_with_state(model, "numbers", "sums", &recurrent));
    trefoil_engine_options options = {.size = sizeof options, .device = device, .check = 1};
    OK(trefoil_engine_build(recurrent, &options, &engine));
    OK(trefoil_engine_input_ports(engine, &count));
    HOLDS(count == 1);
    EXPECT(trefoil_batcher_build(engine, NULL, &batcher), UNSUPPORTED, "a batcher of a model with state");
    EXPECT(trefoil_engine_write_state(engine, "shift", TREFOIL_DTYPE_F32, start, sizeof start), INVALID_ARGUMENT, "`numbers`");
    EXPECT(trefoil_engine_write_state(engine, "numbers", TREFOIL_DTYPE_F32, NULL, sizeof start), NULL_POINTER, "elements");
    EXPECT(trefoil_engine_read_state(engine, "numbers", TREFOIL_DTYPE_I32, state, sizeof state), INVALID_ARGUMENT,
           "elements of i32");
    EXPECT(trefoil_engine_read_state(engine, "numbers", TREFOIL_DTYPE_F32, state, SIZE_MAX), INVALID_ARGUMENT, "12: 1 rows");
    EXPECT(trefoil_engine_read_state(engine, "numbers", TREFOIL_DTYPE_F32, state, 8), INVALID_ARGUMENT, "12: 1 rows");
    EXPECT(trefoil_engine_read_state(engine, "numbers", TREFOIL_DTYPE_F32, NULL, sizeof state), NULL_POINTER, "elements");
    EXPECT(trefoil_engine_read_state(engine, NULL, TREFOIL_DTYPE_F32, state, sizeof state), NULL_POINTER, "name is null");
    EXPECT(trefoil_engine_reset_states(model), WRONG_KIND, NULL);
    OK(trefoil_engine_write_state(engine, "numbers", TREFOIL_DTYPE_F32, start, sizeof start));
    for (int round = 0; round < 2; round++) {
        for (size_t step = 0; step < 3; step++) {
            trefoil_batch batch = 0;
            trefoil_ticket ticket = 0;
            OK(trefoil_acquire(engine, &batch));
            OK(trefoil_batch_write_port(batch, 0, 0, TREFOIL_DTYPE_I64, &shifts[0], sizeof shifts[0]));
            OK(trefoil_submit(batch, 1, &ticket));
            OK(trefoil_release(ticket));
        }
        OK(trefoil_engine_read_state(engine, "numbers", TREFOIL_DTYPE_F32, state, sizeof state));
        for (size_t i = 0; i < N; i++)
            HOLDS(state[i] == (round == 0 ? start[i] : 0.0f) + 3.0f * (float)shifts[0]);
        OK(trefoil_engine_reset_states(engine));
    }
    OK(trefoil_release(engine));

    /* rows that an engine with state does not take leave the batch as it was */
    trefoil_batch batch = 0;
    trefoil_ticket ticket = 0;
    const size_t two = 2;
    options.batch_sizes = &two, options.batch_size_count = 1;
    OK(trefoil_engine_build(recurrent, &options, &engine));
    OK(trefoil_acquire(engine, &batch));
    for (size_t row = 0; row < two; row++)
        OK(trefoil_batch_write_port(batch, row, 0, TREFOIL_DTYPE_I64, &shifts[0], sizeof shifts[0]));
    EXPECT(trefoil_submit(batch, 1, &ticket), INVALID_ARGUMENT, "one of the batch sizes, [2]");
    OK(trefoil_submit(batch, 2, &ticket));
    OK(trefoil_release(ticket));
    OK(trefoil_release(engine));
    OK(trefoil_release(recurrent));
}

/* A network of images has one port on each side. */
static void images(const char *path, trefoil_device device)
{
    trefoil_model model = 0;
    trefoil_engine engine = 0;
    trefoil_port port = {.size = sizeof port};
    trefoil_tensor tensor = {.size = sizeof tensor};
    size_t count = 0;
    trefoil_engine_options options = {.size = sizeof options, .device = device, .batch = 1};
    OK(trefoil_model_open(path, &model));
    OK(trefoil_engine_build(model, &options, &engine));
    OK(trefoil_engine_input_ports(engine, &count));
    OK(trefoil_engine_input_port(engine, 0, &port));
    OK(trefoil_engine_input(engine, &tensor));
    HOLDS(count == 1 && port.dtype == tensor.dtype && port.rank == 3 && port.bytes == tensor.row_bytes);
    HOLDS(port.dims[0] == tensor.height && port.dims[1] == tensor.width && port.dims[2] == tensor.channels);
    OK(trefoil_release(engine));
    OK(trefoil_release(model));
}

/* The results of a row of zeros of an engine, at a size. */
static void zeros(trefoil_engine engine, const trefoil_size *wanted, float *results, size_t bytes)
{
    trefoil_batch batch = 0;
    trefoil_ticket ticket = 0;
    trefoil_output output = 0;
    void *row = NULL;
    const void *found = NULL;
    size_t length = 0;
    OK(trefoil_acquire_for(engine, wanted, UINT64_MAX, &batch));
    OK(trefoil_batch_row(batch, 0, &row, &length));
    HOLDS(length == 20 * 36);
    memset(row, 0, length);
    OK(trefoil_submit(batch, 1, &ticket));
    OK(trefoil_wait(ticket, &output));
    OK(trefoil_output_row(output, 0, &found, &length));
    HOLDS(length == bytes);
    memcpy(results, found, bytes);
    OK(trefoil_release(output));
}

/* A network of images at two sizes of its images; the results at one of them are those of an engine of that size alone. */
static void image_sizes(const char *path, trefoil_device device)
{
    const char *names[] = {"height", "width"}, *depth[] = {"depth"};
    const size_t usual[] = {28, 28}, other[] = {20, 36};
    const trefoil_size first = {.size = sizeof first, .batch = 2, .names = names, .values = usual, .count = 2};
    const trefoil_size second = {.size = sizeof second, .batch = 1, .names = names, .values = other, .count = 2};
    const trefoil_size wrong_one = {.size = sizeof wrong_one, .batch = 1, .names = depth, .values = usual, .count = 1};
    const trefoil_size *sizes[] = {&first, &second};
    trefoil_engine_options options = {.size = sizeof options, .device = device, .check = 1, .sizes = sizes, .size_count = 2};
    trefoil_model model = 0, at = 0, opened_at = 0;
    trefoil_model_info info = {.size = sizeof info};
    trefoil_engine engine = 0;
    float of_both[10], of_one[10];

    OK(trefoil_model_open(path, &model));
    EXPECT(trefoil_model_at(model, NULL, &at), NULL_POINTER, "wanted is null");
    EXPECT(trefoil_model_at(model, &second, NULL), NULL_POINTER, "sized is null");
    EXPECT(trefoil_model_at(model, &wrong_one, &at), INVALID_ARGUMENT, "`height`, `width`");
    OK(trefoil_model_at(model, &second, &at));
    OK(trefoil_model_get_info(at, &info));
    HOLDS(info.height == 20 && info.width == 36 && info.channels == 1 && info.classes == 10);
    OK(trefoil_model_open_at(path, names, other, 2, &opened_at));
    OK(trefoil_model_get_info(opened_at, &info));
    HOLDS(info.height == 20 && info.width == 36);

    OK(trefoil_engine_build(model, &options, &engine));
    zeros(engine, &second, of_both, sizeof of_both);
    OK(trefoil_release(engine));
    options.sizes = NULL, options.size_count = 0, options.batch = 1;
    OK(trefoil_engine_build(at, &options, &engine));
    zeros(engine, &second, of_one, sizeof of_one);
    HOLDS(memcmp(of_both, of_one, sizeof of_one) == 0);
    OK(trefoil_release(engine));

    /* The CPU's own type is F32; probabilities in BF16 are others, and probabilities too. */
    options.precision = TREFOIL_PRECISION_F32;
    OK(trefoil_engine_build(at, &options, &engine));
    zeros(engine, &second, of_both, sizeof of_both);
    HOLDS(memcmp(of_both, of_one, sizeof of_one) == 0);
    OK(trefoil_release(engine));
    options.precision = TREFOIL_PRECISION_BF16;
    OK(trefoil_engine_build(at, &options, &engine));
    zeros(engine, &second, of_both, sizeof of_both);
    float sum = 0.0f;
    for (size_t i = 0; i < 10; i++)
        sum += of_both[i];
    HOLDS(memcmp(of_both, of_one, sizeof of_one) != 0 && sum > 0.999f && sum < 1.001f);
    OK(trefoil_release(engine));
    OK(trefoil_release(model));
    OK(trefoil_release(at));
    OK(trefoil_release(opened_at));
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 64;
    trefoil_device device = 0;
    trefoil_model model = 0;
    trefoil_engine engine = 0;
    OK(trefoil_device_open_cpu(2, &device));
    opened(argv[1], &model);
    trefoil_engine_options options = {.size = sizeof options, .device = device, .batch = ROWS, .check = 1};
    OK(trefoil_engine_build(model, &options, &engine));
    descriptions(engine, model);
    batches(engine);
    single_rows(engine);
    several_sizes(model, device);
    with_state(model, device);
    images(argv[2], device);
    image_sizes(argv[2], device);
    OK(trefoil_release(engine));
    OK(trefoil_release(model));
    OK(trefoil_release(device));
    puts(wrong == 0 ? "the ports hold" : "FAILED");
    return wrong != 0;
}
