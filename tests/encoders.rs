//! Encoders of texts and images from folders, on the CPU, compared with plain loops; texts end to end; and the errors
//! of folders that do not fit.

mod support;

use std::fs;

use serde_json::json;
use support::embedding::Problem;
use support::embedding::folder::Folder;
use support::embedding::kept;
use support::embedding::problems::all;
use support::random::Random;
use trefoil::model::{Embedding, Model, Pooling};
use trefoil::{Device, Error, Pack, PackedRow, Packer, Packing, Precision, Target};

fn named(name: &str) -> Problem {
    all().into_iter().find(|problem| problem.name == name).expect("a problem of this name")
}

#[test]
fn encoders_compute_what_plain_loops_do() {
    let cpu = Device::open(Target::Cpu).unwrap();
    let wrong: Vec<String> = all()
        .iter()
        .filter_map(|problem| Some(format!("{problem}: {}", problem.run(&cpu, Precision::F32).err()?)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The encoders compute the results of the libraries, which `tests/data/make_encoders.py` keeps.
#[test]
fn encoders_compute_what_the_libraries_do() {
    let cpu = Device::open(Target::Cpu).unwrap();
    let wrong: Vec<String> = kept::all()
        .iter()
        .filter_map(|problem| Some(format!("{problem}: {}", problem.run(&cpu, Precision::F32).err()?)))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Queries, keys and values are one product of a matrix that is read in three parts.
#[test]
fn queries_keys_and_values_are_one_product() {
    for problem in all() {
        let graph = problem.open().unwrap().graph(2).unwrap();
        let products = graph.nodes.iter().filter(|node| {
            node.op.kind() == "contract" && node.inputs.iter().flatten().any(|id| graph.constant(*id).is_some())
        });
        let of_layer = products.filter(|node| node.name.contains("layer") || node.name.contains("blocks")).count();
        assert_eq!(of_layer, 2 * 4, "{problem}");
    }
}

/// All tensors that are missing or have a wrong shape are told in one error.
#[test]
fn all_tensors_that_do_not_fit_are_told_at_once() {
    let mut problem = named("BERT, mean, unit");
    problem.tensors.remove("encoder.layer.1.attention.self.key.bias");
    problem.tensors.remove("embeddings.LayerNorm.weight");
    problem.tensors.get_mut("encoder.layer.0.output.dense.weight").unwrap().0.reverse();
    problem.tensors.insert("encoder.layer.2.output.dense.bias".into(), (vec![1], vec![0.0]));
    let told = problem.open().unwrap_err().to_string();
    for part in [
        "4 tensors",
        "`encoder.layer.1.attention.self.key.bias`: expected [64]",
        "`embeddings.LayerNorm.weight`",
        "`encoder.layer.0.output.dense.weight`: expected [64, 128], found [128, 64]",
        "`encoder.layer.2.output.dense.bias`",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

#[test]
fn all_settings_that_are_wrong_are_told_at_once() {
    let mut problem = named("BERT, mean, unit");
    let config = problem.config.as_object_mut().unwrap();
    config.insert("hidden_act".into(), json!("mish"));
    config.insert("num_hidden_layers".into(), json!("two"));
    config.insert("position_embedding_type".into(), json!("relative_key"));
    let told = problem.open().unwrap_err().to_string();
    for part in ["`hidden_act`", "\"mish\"", "`num_hidden_layers`", "\"two\"", "`relative_key`"] {
        assert!(told.contains(part), "{part}: {told}");
    }
}

/// timm's encoders that rotate queries and keys in another way than DINOv3 are refused by their names.
#[test]
fn other_turns_are_refused() {
    let mut problem = kept::all().into_iter().find(|problem| problem.name == "timm siglip").unwrap();
    problem.config["architecture"] = json!("vit_base_patch16_rope_224");
    let told = problem.open().unwrap_err().to_string();
    assert!(told.contains("`vit_base_patch16_rope_224`") && told.contains("DINOv3"), "{told}");
}

#[test]
fn sizes_that_an_encoder_cannot_have_are_refused() {
    let refused = |name: &str, asked: Embedding| {
        let mut problem = named(name);
        problem.asked = asked;
        match problem.open() {
            Err(Error::Option { option, expected, .. }) => format!("{option}: {expected}"),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused("BERT, mean, unit", Embedding::new().sequence(41)), "sequence: 1 to 40 tokens");
    assert_eq!(refused("RoBERTa, last token", Embedding::new().sequence(0)), "sequence: 1 to 40 tokens");
    assert!(refused("BERT, mean, unit", Embedding::new().image(32, 32)).contains("texts"));
    assert!(refused("ViT, classes", Embedding::new().image(32, 33)).contains("multiples of the patches' 8"));
    assert!(refused("ViT, classes", Embedding::new().sequence(8)).contains("images"));
    assert!(refused("ViT, classes", Embedding::new().pooling(Pooling::Last)).contains("Mean, Class or Tokens"));
}

/// Tensors without elements may have axes of any size, which do not count as sizes of a model.
#[test]
fn sizes_that_only_empty_tensors_have_are_refused() {
    let huge = 1_usize << 62;
    for (name, tensor, dims) in [
        ("timm, classes", "pos_embed", vec![0, huge, 16]),
        ("timm, classes", "cls_token", vec![0, huge, 16]),
        ("timm, classes", "patch_embed.proj.weight", vec![0, 3, huge, huge]),
        ("timm, classes", "blocks.0.mlp.fc2.weight", vec![0, huge]),
    ] {
        let mut problem = named(name);
        problem.tensors.insert(tensor.to_owned(), (dims, Vec::new()));
        let told = problem.open().unwrap_err().to_string();
        assert!(told.contains(&format!("`{tensor}`")), "{tensor}: {told}");
    }
    for (name, tensor, dims) in [
        ("timm swin", "patch_embed.proj.weight", vec![huge, 3, 0, 4]),
        ("timm swin", "layers.0.blocks.0.attn.relative_position_bias_table", vec![huge, 0]),
        ("timm convnext", "stem.0.weight", vec![0, 3, huge, huge]),
        ("timm convnext", "stages.0.blocks.0.norm.weight", vec![0]),
    ] {
        let mut problem = kept::all().into_iter().find(|problem| problem.name == name).unwrap();
        problem.tensors.insert(tensor.to_owned(), (dims, Vec::new()));
        let told = problem.open().unwrap_err().to_string();
        assert!(told.contains(&format!("`{tensor}`")), "{tensor}: {told}");
    }
}

/// An image that is higher than wide has as many positions along each side as patches: an image turned by a quarter,
/// with the table of positions and the filter turned as well, gives the same vector.
#[test]
fn places_of_images_that_are_no_squares_are_where_they_belong() {
    let of = |sides: [usize; 2], is_turned: bool| {
        let mut problem = named("ViT, classes");
        problem.config["image_size"] = json!(sides);
        let patch = problem.config["patch_size"].as_u64().unwrap() as usize;
        let [height, width] = [24, 40].map(|side| side / patch);
        let mut random = Random::new("places of no square");
        for (name, (dims, values)) in &mut problem.tensors {
            if name.ends_with("position_embeddings") {
                let columns = dims[2];
                dims[1] = 1 + height * width;
                *values = random.singles(dims[1] * columns, 0.5);
                if is_turned {
                    let from = values.clone();
                    let place = |at: usize| 1 + at * width % (height * width) + at / height;
                    for at in 0..height * width {
                        let (to, from_at) = ((1 + at) * columns, place(at) * columns);
                        values[to..to + columns].copy_from_slice(&from[from_at..from_at + columns]);
                    }
                }
            } else if name.ends_with("projection.weight") && is_turned {
                let from = values.clone();
                let of = |at: usize| at / patch.pow(2) * patch.pow(2) + at % patch * patch + at / patch % patch;
                values.iter_mut().enumerate().for_each(|(at, value)| *value = from[of(at)]);
            }
        }
        let model = problem.open().unwrap();
        let engine = trefoil::Engine::builder(&model).on(&Device::cpu(1)).build().unwrap();
        let mut batch = engine.acquire().unwrap();
        let [_, columns] = sides;
        let color = |y: usize, x: usize, c: usize| ((y * 40 + x) * 3 + c) * 89 % 251;
        for (at, byte) in batch.row_mut(0).iter_mut().enumerate() {
            let (y, x, c) = (at / 3 / columns, at / 3 % columns, at % 3);
            *byte = (if is_turned { color(x, y, c) } else { color(y, x, c) }) as u8;
        }
        let output = batch.submit(1).unwrap().wait().unwrap();
        output.port::<f32>(0, "embedding").unwrap().to_vec()
    };
    let (upright, turned) = (of([24, 40], false), of([40, 24], true));
    let worst = upright.iter().zip(&turned).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst < 1e-4 && upright.iter().any(|x| x.abs() > 0.1), "they differ by {worst}");
}

/// Old checkpoints call the factors and biases of norms gamma and beta.
#[test]
fn norms_may_have_their_old_names() {
    let problem = named("BERT, mean, unit");
    let old =
        |name: &str| name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
    let mut renamed = problem.clone();
    renamed.tensors = problem.tensors.iter().map(|(name, of)| (old(name), of.clone())).collect();
    let (today, before) = (problem.open().unwrap(), renamed.open().unwrap());
    assert_eq!(before.graph(1).unwrap(), today.graph(1).unwrap());
    let of = |model: &Model| model.weights().read("embeddings.LayerNorm.weight").unwrap().elems::<f32>().to_vec();
    assert_eq!(of(&before), of(&today));
}

/// Files that sentence-transformers writes beside a model decide how it pools, unless an option says it.
#[test]
fn modules_beside_a_model_say_how_it_pools() {
    let problem = named("BERT, first token");
    let Folder(path) = &problem.folder();
    let module = |kind: &str, path: &str| json!({"type": format!("sentence_transformers.models.{kind}"), "path": path});
    fs::create_dir(path.join("1_Pooling")).unwrap();
    let pooling = json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false});
    fs::write(path.join("1_Pooling/config.json"), pooling.to_string()).unwrap();
    fs::write(path.join("sentence_bert_config.json"), json!({"max_seq_length": 16}).to_string()).unwrap();
    let with = |modules: serde_json::Value, asked: Embedding| {
        fs::write(path.join("modules.json"), modules.to_string()).unwrap();
        Model::open_encoder(path, &asked)
    };
    let modules =
        json!([module("Transformer", ""), module("Pooling", "1_Pooling"), module("Normalize", "2_Normalize")]);
    let model = with(modules.clone(), Embedding::new()).unwrap();
    let graph = model.graph(1).unwrap();
    assert_eq!(graph.value(graph.inputs[0].value).dims, [1, 16]);
    assert!(graph.find("seen.count").is_none() && graph.find("unit").is_some());
    let asked = Embedding::new().pooling(Pooling::Mean).normalized(false);
    let graph = with(modules, asked).unwrap().graph(1).unwrap();
    assert!(graph.find("seen.count").is_some() && graph.find("unit").is_none());
    let told = with(json!([module("Dense", "2_Dense")]), Embedding::new()).unwrap_err();
    assert!(matches!(&told, Error::Unsupported { what, .. } if what.contains("Dense")), "{told}");
    let told = with(json!([module("Pooling", "../1_Pooling")]), Embedding::new()).unwrap_err().to_string();
    assert!(told.contains("`../1_Pooling`"), "{told}");
    let both = json!({"pooling_mode_cls_token": true, "pooling_mode_max_tokens": true});
    fs::write(path.join("1_Pooling/config.json"), both.to_string()).unwrap();
    let told = with(json!([module("Pooling", "1_Pooling")]), Embedding::new()).unwrap_err().to_string();
    assert!(told.contains("one way to pool"), "{told}");
}

/// A folder with an encoder opens without options, and with its sizes by name.
#[test]
fn folders_open_as_other_models_do() {
    let Folder(path) = &named("BERT, mean, unit").folder();
    let of = |model: Model| model.graph(1).unwrap();
    let whole = of(Model::open(path).unwrap());
    assert_eq!(whole.value(whole.inputs[0].value).dims, [1, 40]);
    let short = of(Model::open_at(path, &trefoil::onnx::Sizes::new().dim("sequence", 8)).unwrap());
    assert_eq!(short.value(short.inputs[0].value).dims, [1, 8]);
    let told = Model::open_at(path, &trefoil::onnx::Sizes::new().dim("length", 8)).unwrap_err().to_string();
    assert!(told.contains("`length`") && told.contains("`sequence`"), "{told}");
    let Folder(path) = &named("ViT, classes").folder();
    let model = Model::open(path).unwrap();
    assert_eq!(model.preprocessing().unwrap().input.to_string(), "32x32x3");
    assert!(model.image_network().is_err());
}

/// All problems of texts that may lie end to end.
fn packed() -> impl Iterator<Item = Problem> {
    all().into_iter().chain(kept::all()).filter(Problem::is_packed)
}

#[test]
fn packed_texts_are_what_plain_loops_and_libraries_compute() {
    let cpu = Device::open(Target::Cpu).unwrap();
    let wrong: Vec<String> = packed()
        .filter_map(|problem| Some(format!("{problem}: {}", problem.run_packed(&cpu, Precision::F32).err()?)))
        .collect();
    assert!(wrong.is_empty() && packed().count() == 10, "{wrong:#?}");
}

#[test]
fn a_text_has_the_same_bits_in_every_pack() {
    let cpu = Device::cpu(2);
    for problem in packed() {
        let told = problem.has_one_answer_in_every_pack(&cpu, Precision::F32);
        assert_eq!(told, Ok(()), "{problem}");
    }
}

/// Row starts that no pack can have: the run ends, and the next one is computed as if the bad one had not been.
#[test]
fn any_starts_leave_memory_and_later_packs_alone() {
    let cpu = Device::cpu(2);
    for problem in packed() {
        let engine = problem.packed(&cpu, Precision::F32, 50, 7).unwrap();
        let text = problem.text(engine.size.longest);
        let (before, mut random) = (engine.bits(&[&text]), Random::new(problem.name));
        for _ in 0..6 {
            engine.hostile(&mut random).submit(1).unwrap().wait().unwrap();
        }
        assert!(engine.bits(&[&text]) == before, "{problem}");
    }
}

/// Rows that are not there are zeros before anything is added to them: they hold nothing of a neighbour.
#[test]
fn empty_rows_have_nothing_of_their_neighbours() {
    let problem = named("BERT, first token");
    let engine = problem.packed(&Device::cpu(1), Precision::F32, 50, 4).unwrap();
    let row = |starts: [i64; 5], row: usize| {
        let mut batch = engine.engine.acquire().unwrap();
        batch.port_mut::<i64>(0, "input_ids").unwrap().iter_mut().zip(0..).for_each(|(id, i)| *id = i);
        batch.port_mut::<i64>(0, "starts").unwrap().copy_from_slice(&starts);
        let output = batch.submit(1).unwrap().wait().unwrap();
        output.port::<f32>(0, "embedding").unwrap()[row * 64..][..64].to_vec()
    };
    assert_eq!(row([0, 0, 9, 9, 30], 0), [0.0; 64]);
    assert_eq!(row([0, 0, 9, 9, 30], 2), [0.0; 64]);
    assert_ne!(row([0, 0, 9, 9, 30], 1), [0.0; 64]);
    assert_eq!(row([0, 0, 9, 9, 30], 3), row([0, 0, 4, 9, 30], 3));
}

#[test]
fn a_pack_says_what_does_not_fit() {
    let problem = named("BERT, mean, unit");
    let engine = problem.packed(&Device::cpu(1), Precision::F32, 30, 3).unwrap();
    assert_eq!(engine.size, Packing { tokens: 30, rows: 3, longest: 24 });
    let told = |result: Result<Option<usize>, Error>| result.unwrap_err().to_string();
    let mut pack = engine.pack().unwrap();
    assert!(told(pack.push(&[("input_ids", &[])])).contains("1 to 24"));
    assert!(told(pack.push(&[("input_ids", &[1; 25])])).contains("25 tokens"));
    assert!(told(pack.push(&[("input_ids", &[1; 2]), ("token_type_ids", &[0])])).contains("`token_type_ids`"));
    assert!(told(pack.push(&[("starts", &[1])])).contains("`starts`"));
    assert!(told(pack.push(&[("mask", &[1])])).contains("`input_ids`"));
    assert!(pack.is_empty());
    assert_eq!(pack.push(&[("input_ids", &[1; 24])]).unwrap(), Some(0));
    assert_eq!(pack.push(&[("input_ids", &[1; 7])]).unwrap(), None, "31 tokens");
    assert_eq!(pack.push(&[("input_ids", &[1; 6])]).unwrap(), Some(1));
    assert_eq!((pack.len(), pack.tokens(), pack.push(&[("input_ids", &[1])]).unwrap()), (2, 30, None));
    let (ticket, rows) = pack.submit().unwrap();
    let output = ticket.wait().unwrap();
    assert_eq!((rows.len(), rows.tokens(1)), (2, 24..30));
    assert_eq!(rows.port::<f32>(&output, 1, "embedding").unwrap().len(), 64);
    assert!(rows.port::<i64>(&output, 1, "embedding").is_err());
    assert!(engine.pack().unwrap().submit().unwrap_err().to_string().contains("1 to 3"));
    let mut short = engine.pack().unwrap();
    for row in 0..3 {
        assert_eq!(short.push(&[("input_ids", &[1])]).unwrap(), Some(row));
    }
    assert_eq!(short.push(&[("input_ids", &[1])]).unwrap(), None, "a fourth row");
    let other = Packing { tokens: 31, ..engine.size };
    let told = Pack::new(engine.engine.acquire().unwrap(), other).unwrap_err().to_string();
    assert!(told.contains("tokens=31,rows=3,longest=24"), "{told}");
}

/// Many threads submit rows of all lengths to a packer; submitted rows are answered even after the packer is dropped.
#[test]
fn a_packer_answers_every_thread_with_the_bits_of_its_row() {
    let problem = named("BERT, tokens");
    let engine = problem.packed(&Device::cpu(2), Precision::F32, 60, 5).unwrap();
    let lengths = [1, 2, 7, 19, 24];
    let texts = lengths.map(|tokens| problem.text(tokens));
    let alone = texts.each_ref().map(|text| engine.bits(&[text]).remove(0));
    let packer = Packer::new(&engine.engine).unwrap();
    let bits = |row: &PackedRow| row.port::<f32>("tokens").unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let run = |thread: usize| {
        let mut random = Random::new(&format!("thread {thread}"));
        for _ in 0..10 {
            let order: Vec<usize> = (0..random.between(1, 4)).map(|_| random.between(0, 4)).collect();
            let submit = |&index: &usize| engine.submit(&packer, &texts[index]).unwrap();
            let tickets: Vec<_> = order.iter().map(submit).collect();
            for (ticket, &index) in tickets.into_iter().zip(&order) {
                assert!(bits(&ticket.wait().unwrap()) == alone[index], "{} tokens", lengths[index]);
            }
        }
    };
    std::thread::scope(|scope| (0..5).for_each(|thread| drop(scope.spawn(move || run(thread)))));
    let told = packer.submit(&[("input_ids", &[1; 25])]).err().expect("too long").to_string();
    assert!(told.contains("25 tokens") && told.contains("1 to 24"), "{told}");
    let last: Vec<_> = (0..12).map(|_| engine.submit(&packer, &texts[4]).unwrap()).collect();
    drop(packer);
    assert!(last.into_iter().all(|ticket| bits(&ticket.wait().unwrap()) == alone[4]));
    let padded = trefoil::Engine::builder(&problem.open().unwrap()).on(&Device::cpu(1)).build().unwrap();
    assert!(Packer::new(&padded).err().expect("padded rows").to_string().contains("attention_mask"));
}

/// A row of a packer gets the results of each model of the engine.
#[test]
fn a_packer_of_several_models_gives_the_outputs_of_each() {
    let device = Device::cpu(2);
    let open = |asked: Embedding| {
        let Folder(path) = &named("BERT, mean, unit").folder();
        Model::open_encoder(path, &asked.sequence(20).packed(64, 8)).unwrap()
    };
    let models = [open(Embedding::new()), open(Embedding::new().pooling(Pooling::Tokens))];
    let ids: [&[i64]; 3] = [&[3, 1, 4, 1, 5], &[2, 7], &[1; 20]];
    let run = |engine: trefoil::Engine| {
        let packer = Packer::new(&engine).unwrap();
        let tickets: Vec<_> = ids.iter().map(|ids| packer.submit(&[("input_ids", *ids)]).unwrap()).collect();
        tickets.into_iter().map(|ticket| ticket.wait().unwrap()).collect::<Vec<_>>()
    };
    let alone = models.each_ref().map(|model| run(trefoil::Engine::builder(model).on(&device).build().unwrap()));
    let [first, second] = &models;
    let both = trefoil::Engine::builder(first).beside(second).on(&device).build().unwrap();
    let mut pack = Pack::new(both.acquire().unwrap(), first.packing().unwrap()).unwrap();
    ids.iter().for_each(|ids| assert!(pack.push(&[("input_ids", ids)]).unwrap().is_some()));
    let (ticket, packed) = pack.submit().unwrap();
    let output = ticket.wait().unwrap();
    let together = run(both);
    for (at, row) in together.iter().enumerate() {
        assert_eq!(row.parts(), 2);
        for (part, name) in ["embedding", "tokens"].into_iter().enumerate() {
            let expected: &[f32] = alone[part][at].port(name).unwrap();
            assert!(row.port_of::<f32>(part, name).unwrap() == expected, "row {at}, model {part}");
            let in_place = packed.port_of::<f32>(&output.part(part), at, name).unwrap();
            assert!(in_place == expected, "row {at}, model {part}, in place");
        }
        assert!(row.port::<f32>("embedding").unwrap() == row.port_of::<f32>(0, "embedding").unwrap());
        let told = row.port_of::<f32>(1, "embedding").unwrap_err().to_string();
        assert!(told.contains("one of `tokens`"), "{told}");
    }
}

#[test]
fn encoders_that_are_not_packed_say_why() {
    let refused = |mut problem: Problem, tokens: usize, rows: usize| {
        problem.asked = problem.asked.packed(tokens, rows);
        problem.open().unwrap_err().to_string()
    };
    let of_library = |name: &str| kept::all().into_iter().find(|problem| problem.name == name).unwrap();
    let told = refused(of_library("siglip texts"), 64, 4);
    assert!(told.contains("`siglip`") && told.contains("fill a row"), "{told}");
    let told = refused(named("ViT, classes"), 64, 4);
    assert!(told.contains("`vit`") && told.contains("no encoder of texts"), "{told}");
    let told = refused(named("BERT, mean, unit"), 64, 0);
    assert!(told.contains("tokens=64,rows=0,longest=24") && told.contains("1 row or more"), "{told}");
}

/// Several sizes of one engine, and a size that the model does not have.
#[test]
fn packed_sizes_are_free_dimensions() {
    let Folder(path) = &named("BERT, mean, unit").folder();
    let model = Model::open_encoder(path, &Embedding::new().sequence(20).packed(64, 8)).unwrap();
    assert_eq!(model.packing(), Some(Packing { tokens: 64, rows: 8, longest: 20 }));
    let small = trefoil::Size::new(1).dim("tokens", 32).dim("rows", 2);
    let sizes = [trefoil::Size::new(1), small.clone()];
    let engine = trefoil::Engine::builder(&model).on(&Device::cpu(1)).sizes(&sizes).build().unwrap();
    let run = |size: &trefoil::Size| {
        let packing = model.at(size).unwrap().packing().unwrap();
        let mut pack = Pack::new(engine.acquire_for(size).unwrap(), packing).unwrap();
        pack.push(&[("input_ids", &[3, 1, 4, 1, 5])]).unwrap();
        let (ticket, rows) = pack.submit().unwrap();
        let output = ticket.wait().unwrap();
        rows.port::<f32>(&output, 0, "embedding").unwrap().to_vec()
    };
    let is_near = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(is_near(&run(&sizes[0]), &run(&small)));
    let packer = Packer::new(&engine).unwrap(); // its packs are of the smallest size that holds them
    let tickets: Vec<_> = (0..9).map(|_| packer.submit(&[("input_ids", &[3, 1, 4, 1, 5])]).unwrap()).collect();
    let expected = run(&small);
    assert!(tickets.into_iter().all(|ticket| is_near(ticket.wait().unwrap().port("embedding").unwrap(), &expected)));
    let told = model.at(&trefoil::Size::new(1).dim("longest", 41)).unwrap_err().to_string();
    assert!(told.contains("longest=41") && told.contains("1 to 40 tokens"), "{told}");
    let sizes = trefoil::onnx::Sizes::new().dim("tokens", 64).dim("rows", 8);
    assert_eq!(Model::open_at(path, &sizes).unwrap().packing().unwrap().longest, 40);
}
