//! `trefoil completions`: prints a script that lets a shell complete the command line.

use std::io::{self, Write};

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::Outcome;
use crate::cli::Cli;

/// Arguments of `completions`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  trefoil completions bash > ~/.local/share/bash-completion/completions/trefoil
  trefoil completions zsh > \"${fpath[1]}/_trefoil\"
  trefoil completions fish > ~/.config/fish/completions/trefoil.fish")]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub fn run(args: &CompletionsArgs) -> Result<Outcome> {
    let mut script = Vec::new(); // as a whole, for the generator panics where a pipe is closed
    clap_complete::generate(args.shell, &mut Cli::command(), "trefoil", &mut script);
    io::stdout().write_all(&script)?;
    Ok(Outcome::AllGood)
}
