//! Models of any values through the engine on the CPU; `tests/gpu.rs` runs the same cases on a GPU.

#[path = "support/values.rs"]
mod cases;
#[path = "support/records.rs"]
mod records;
#[path = "support/sizes.rs"]
mod sizes;
#[path = "support/whole_numbers.rs"]
mod whole_numbers;

use trefoil::{Device, Target};

macro_rules! on_the_cpu {
    ($($of:ident::{$($case:ident),* $(,)?})*) => {
        $($(#[test]
        fn $case() {
            $of::$case(&Device::open(Target::Cpu).unwrap());
        })*)*

        /// A GPU has no case that the CPU has not.
        #[test]
        fn every_case_is_here() {
            $(assert_eq!($of::ALL.map(|(name, _)| name), [$(stringify!($case)),*]);)*
        }
    };
}

on_the_cpu!(
    cases::{
        rows_have_ports_of_their_own_types,
        a_batcher_takes_single_records,
        every_output_is_there_whoever_reads_it,
        models_read_one_another,
        outputs_are_whatever_the_graph_says,
        images_between_loops_are_exact,
    }
    sizes::{
        every_size_has_rows_of_its_own,
        rows_of_no_size_name_the_sizes,
        shorter_rows_are_padded,
        padding_is_told_of_every_input,
        a_batcher_has_rows_of_every_size,
        a_fleet_has_batches_of_every_size,
        models_side_by_side_have_the_same_sizes,
        a_mean_is_there_at_every_size,
        the_batch_may_be_another_axis,
    }
);

#[test]
fn sizes_share_their_memory() {
    sizes::sizes_share_their_memory(&Device::cpu(1));
}
