//! Encoders of texts and images from folders, on the CPU, beside plain loops; texts end to end; and what is said of folders that
//! do not fit.

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
    let wrong: Vec<String> =
        all().iter().filter_map(|problem| Some(format!("{problem}: {}", problem.run(&cpu, false).err()?))).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// `tests/data/make_encoders.py` has what the libraries computed.
#[test]
fn encoders_compute_what_the_libraries_do() {
    let cpu = Device::open(Target::Cpu).unwrap();
    let wrong: Vec<String> = kept::all()
        .iter()
        .filter_map(|problem| Some(format!("{problem}: {}", problem.run(&cpu, false).err()?)))
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

/// Everything that is missing or misshapen is one error.
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

/// timm's encoders that turn queries and keys otherwise than DINOv3 does are told by their names.
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

/// What sentence-transformers writes beside a model decides where nothing is asked for.
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

/// A folder opens without options, and by the names of its sizes.
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

/// Every problem of texts that may lie end to end.
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

/// Starts that no pack has: the run ends, and the next one is as if it had not been.
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

/// Rows that are not there are zeros before anything is added to them: nothing of a neighbour is in them.
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

/// Rows of all lengths from many threads; those that were submitted are answered when the packer is gone.
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
