// Reads the characters in a picture of a line of text, with a recogniser of PaddleOCR in ONNX.
//
//     read_text MODEL.onnx PICTURE.ppm [NAME=SIZE...]
//
// NAME=SIZE gives the size of a free dimension of the file. examples/read_text.rs is the same in Rust, with more comments.
#include <iostream>
#include <sstream>

#include <trefoil.hpp>

#include "ppm.hpp"

// The characters by class: the blank between two of them, those that the file lists, and a space.
static std::vector<std::string> characters_of(const trefoil::model &model) {
    std::vector<std::string> characters{""};
    std::istringstream listed(model.metadata("character"));
    for (std::string line; std::getline(listed, line);) characters.push_back(line);
    characters.push_back(" ");
    return characters;
}

int main(int argc, char **argv) try {
    if (argc < 3) return std::cerr << "usage: read_text MODEL.onnx PICTURE.ppm [NAME=SIZE...]\n", 64;
    trefoil::check_abi();
    const picture line = picture::open(argv[2]);
    const trefoil::model model = trefoil::model::at(argv[1], sizes_of(argv + 3, argv + argc));
    trefoil::engine_options options;
    options.batch = 1;
    const trefoil::engine engine(model, options);
    const trefoil::port input = engine.input_port(0), answer = engine.output_port(0);
    if (input.rank != 3 || answer.rank != 2) throw std::runtime_error("not a network from an image to characters");
    const std::size_t height = input.dims[1], width = input.dims[2], classes = answer.dims[1];

    // Resized to the input's height, at its left.
    const std::size_t drawn = std::min(width, (line.width * height + line.height - 1) / line.height);
    trefoil::batch batch = engine.acquire();
    const auto planes = batch.port<float>(0, 0);
    const float step_x = static_cast<float>(line.width) / drawn, step_y = static_cast<float>(line.height) / height;
    for (std::size_t channel = 0, i = 0; channel < 3; channel++) // blue, green, red
        for (std::size_t y = 0; y < height; y++)
            for (std::size_t x = 0; x < width; x++, i++) {
                const float at_x = (x + 0.5f) * step_x - 0.5f, at_y = (y + 0.5f) * step_y - 0.5f;
                planes[i] = x < drawn ? line.at(at_x, at_y, 2 - channel) / 127.5f - 1 : 0;
            }
    const trefoil::output output = std::move(batch).submit(1).wait();

    // The best character of each place, once for a run of the same, without blanks.
    const auto characters = characters_of(model);
    const auto probabilities = output.port<float>(0, 0);
    std::size_t last = 0;
    for (std::size_t place = 0; place < answer.dims[0]; place++) {
        const float *of = probabilities.data() + place * classes;
        const auto best = static_cast<std::size_t>(std::max_element(of, of + classes) - of);
        if (best != last && best != 0) std::cout << (best < characters.size() ? characters[best] : "?");
        last = best;
    }
    std::cout << '\n';
    return 0;
} catch (const std::exception &problem) {
    std::cerr << problem.what() << '\n';
    return 1;
}
