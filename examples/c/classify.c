/* Classifies one picture:
 *
 *     classify MODEL PICTURE.ppm [DEVICE]
 *
 * The picture is a binary PPM (P6, one byte a value) or PGM (P5, for models of gray pictures), of the size that the
 * model takes: the program that writes it must resize it. ImageMagick makes one for a model of 224 x 224 pixels with
 *     magick cat.jpg -resize 256x256^ -gravity center -crop 224x224+0+0 +repage cat.ppm
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <trefoil.h>

static void must(trefoil_status status)
{
    if (status == TREFOIL_STATUS_OK)
        return;
    fprintf(stderr, "%s: %s\n", trefoil_status_name(status), trefoil_last_error());
    exit(1);
}

/* The next number of a PPM's head; -1 if there is none. */
static int number(FILE *file)
{
    int c = fgetc(file), value = 0;
    while (c == '#' || c == ' ' || c == '\n' || c == '\r' || c == '\t') {
        if (c == '#')
            while (c != '\n' && c != EOF)
                c = fgetc(file);
        c = fgetc(file);
    }
    if (c < '0' || c > '9')
        return -1;
    for (; c >= '0' && c <= '9' && value < 100000; c = fgetc(file))
        value = 10 * value + c - '0';
    return value;
}

/* Reads the pixels straight into page-locked memory. */
static int read_ppm(const char *path, const trefoil_tensor *input, void *row, size_t bytes)
{
    FILE *file = fopen(path, "rb");
    char magic[3] = "";
    int ok = file != NULL && fread(magic, 1, 2, file) == 2
        && strcmp(magic, input->channels == 3 ? "P6" : "P5") == 0
        && number(file) == (int)input->width && number(file) == (int)input->height && number(file) == 255
        && fread(row, 1, bytes, file) == bytes;
    if (file != NULL)
        fclose(file);
    return ok;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: classify MODEL PICTURE.ppm [DEVICE]\n");
        return 64;
    }
    must(trefoil_check_abi(TREFOIL_ABI_MAJOR, TREFOIL_ABI_MINOR));

    trefoil_device device;
    trefoil_model model;
    trefoil_engine engine;
    must(trefoil_device_open(argc > 3 ? argv[3] : "auto", &device));
    must(trefoil_model_open(argv[1], &model));
    trefoil_engine_options options = {.size = sizeof options, .device = device, .batch = 1};
    must(trefoil_engine_build(model, &options, &engine));

    trefoil_batch batch;
    trefoil_ticket ticket;
    trefoil_output output;
    trefoil_tensor input = {.size = sizeof input};
    void *row;
    size_t bytes;
    must(trefoil_engine_input(engine, &input));
    must(trefoil_acquire(engine, &batch));
    must(trefoil_batch_row(batch, 0, &row, &bytes));
    if (!read_ppm(argv[2], &input, row, bytes)) {
        fprintf(stderr, "%s: not a binary %s of %u x %u pixels and 8 bits\n", argv[2],
                input.channels == 3 ? "PPM" : "PGM", (unsigned)input.width, (unsigned)input.height);
        return 1;
    }
    must(trefoil_submit(batch, 1, &ticket)); /* never waits for the device */
    must(trefoil_wait(ticket, &output));

    trefoil_scored_class best[5];
    size_t found;
    must(trefoil_output_top_k(output, 0, best, 5, &found));
    for (size_t rank = 0; rank < found; rank++) {
        char label[64];
        must(trefoil_model_label(model, best[rank].index, label, sizeof label, NULL));
        printf("%5.1f %%  %u  %s\n", 100 * best[rank].value, (unsigned)best[rank].index, label);
    }
    must(trefoil_release(output));
    must(trefoil_release(engine));
    must(trefoil_release(model));
    must(trefoil_release(device));
    return 0;
}
