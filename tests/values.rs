//! Models of any values through the engine on the CPU; `tests/gpu.rs` runs the same cases on a GPU.

#[path = "support/values.rs"]
mod cases;
#[path = "support/records.rs"]
mod records;
#[path = "support/whole_numbers.rs"]
mod whole_numbers;

use trefoil::{Device, Target};

macro_rules! on_the_cpu {
    ($($case:ident),*) => {
        $(#[test]
        fn $case() {
            cases::$case(&Device::open(Target::Cpu).unwrap());
        })*

        /// A GPU has no case that the CPU has not.
        #[test]
        fn every_case_is_here() {
            assert_eq!(cases::ALL.map(|(name, _)| name), [$(stringify!($case)),*]);
        }
    };
}

on_the_cpu!(
    rows_have_ports_of_their_own_types,
    a_batcher_takes_single_records,
    every_output_is_there_whoever_reads_it,
    models_read_one_another,
    outputs_are_whatever_the_graph_says,
    images_between_loops_are_exact
);
