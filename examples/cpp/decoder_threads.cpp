// Many decoder threads share one GPU: each thread decodes into page-locked memory, submits the batch, and reads the
// result of its previous batch, while copies and compute of all threads overlap. The program has no locks, streams or
// synchronisation of its own.
//
//     decoder_threads MODEL THREADS PICTURE.ppm...
//
// A picture is a binary PPM of the model's size, as for examples/c/classify.c; a real program decodes JPEG here.
// examples/decoder_threads.rs is the same in Rust.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <future>
#include <iostream>
#include <sstream>

#include <trefoil.hpp>

static void decode(const char *path, const trefoil_tensor &input, trefoil::span<std::uint8_t> pixels) {
    if (input.channels != 3)
        throw std::runtime_error(std::string(path) + ": a binary PPM has 3 channels, and the model takes "
                                 + std::to_string(input.channels));
    std::ifstream file(path, std::ios::binary);
    std::string magic;
    std::uint32_t width = 0, height = 0, most = 0;
    file >> magic >> width >> height >> most;
    file.get();
    file.read(reinterpret_cast<char *>(pixels.data()), static_cast<std::streamsize>(pixels.size()));
    if (!file || magic != "P6" || width != input.width || height != input.height || most != 255)
        throw std::runtime_error(std::string(path) + ": not a binary PPM of the model's size");
}

int main(int argc, char **argv) try {
    if (argc < 4) return std::cerr << "usage: decoder_threads MODEL THREADS PICTURE.ppm...\n", 64;
    trefoil::check_abi();
    const std::size_t threads = std::strtoul(argv[2], nullptr, 10);
    trefoil::model model(argv[1]);
    trefoil::engine_options options;
    options.batch = 8;
    options.staging = threads + 3; // as many as producers and slots together
    trefoil::engine engine(model, options);

    std::atomic<int> next{3};
    const auto decoder = [&] {
        trefoil::ticket last;
        int last_first = 0;
        const auto consume = [&] {
            if (!last) return;
            trefoil::output output = std::move(last).wait(); // waits for this batch and for nothing else
            for (std::size_t row = 0; row < output.rows(); row++) {
                const auto best = output.top_k<1>(row)[0];
                std::ostringstream line;
                line << argv[last_first + static_cast<int>(row)] << ": " << best.index << ' '
                     << model.label(best.index) << ' ' << best.value << '\n';
                std::cout << line.str() << std::flush;
            }
        };
        const int each = static_cast<int>(engine.capacity());
        for (int first; (first = next.fetch_add(each)) < argc;) {
            const int count = std::min(each, argc - first);
            trefoil::batch batch = engine.acquire(); // page-locked memory
            for (int i = 0; i < count; i++) decode(argv[first + i], engine.input(), batch.row(i));
            trefoil::ticket ticket = std::move(batch).submit(count); // never waits for the GPU
            consume();                                               // the batch before, meanwhile
            last = std::move(ticket);
            last_first = first;
        }
        consume();
    };
    std::vector<std::future<void>> decoders;
    for (std::size_t i = 0; i < threads; i++) decoders.push_back(std::async(std::launch::async, decoder));
    for (auto &running : decoders) running.get();
    return 0;
} catch (const std::exception &problem) {
    std::cerr << problem.what() << '\n';
    return 1;
}
