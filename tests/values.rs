//! Models of any values through the engine on the CPU; `tests/gpu.rs` runs the same cases on a GPU.

#[path = "support/beyond_f16.rs"]
mod beyond_f16;
#[path = "support/values.rs"]
mod cases;
#[path = "support/image_sizes.rs"]
mod image_sizes;
#[path = "support/joined.rs"]
mod joined;
#[path = "support/photos.rs"]
mod photos;
#[path = "support/records.rs"]
mod records;
#[path = "support/sizes.rs"]
mod sizes;
#[path = "support/states.rs"]
mod states;
#[path = "support/whole_numbers.rs"]
mod whole_numbers;

use trefoil::{Device, Target};

macro_rules! on_the_cpu {
    ($($of:ident::{$($case:ident),* $(,)?})*) => {
        $($(#[test]
        fn $case() {
            $of::$case(&Device::open(Target::Cpu).unwrap());
        })*)*

        /// Every case that runs on a GPU runs on the CPU too.
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
        fleets_and_several_models_take_records,
        models_read_one_another,
        outputs_are_whatever_the_graph_says,
        images_between_loops_are_exact,
        nodes_in_f32_hold_what_f16_does_not,
        photos_are_classified_beside_numbers,
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
        models_that_read_one_another_have_the_same_sizes,
        a_batcher_feeds_models_that_read_one_another,
        the_batch_may_be_another_axis,
    }
    image_sizes::{
        images_of_every_size_are_as_in_engines_of_one,
        parts_of_a_model_have_every_size,
        models_that_read_images_features_have_every_size,
        a_mean_of_image_models_is_there_at_every_size,
        a_batcher_has_images_of_every_size,
        a_fleet_has_images_of_every_size,
        sizes_that_images_cannot_have_are_told,
    }
    states::{
        a_batch_goes_on_where_the_one_before_ended,
        each_row_has_a_state_of_its_own,
        states_may_be_what_others_were,
        an_lstm_step_by_step_is_the_sequence_in_one_go,
        models_that_read_one_another_have_states_each,
        what_states_cannot_do_is_refused,
    }
    joined::{
        joined_models_compute_one_after_the_other,
        a_flow_hands_on_what_the_first_model_read,
        each_of_several_rows_is_a_row,
        models_of_values_are_cut_in_two,
        networks_of_images_become_models_of_values,
        what_cannot_be_joined_is_told,
    }
);

#[test]
fn an_audit_names_what_is_beyond_f16() {
    beyond_f16::an_audit_names_what_is_beyond_f16();
}

#[test]
fn an_audit_names_where_digits_are_lost() {
    beyond_f16::an_audit_names_where_digits_are_lost();
}

#[test]
fn loops_hold_what_f16_does_not() {
    beyond_f16::loops_hold_what_f16_does_not(&Device::cpu(1));
}

#[test]
fn what_is_not_finite_is_named_first_one_first() {
    beyond_f16::what_is_not_finite_is_named_first_one_first(&Device::cpu(1));
}

#[test]
fn sizes_share_their_memory() {
    sizes::sizes_share_their_memory(&Device::cpu(1));
}

#[test]
fn image_sizes_share_their_memory() {
    image_sizes::image_sizes_share_their_memory(&Device::cpu(1));
}
