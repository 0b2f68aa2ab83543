//! Nodes of a model's file that cannot be imported.

use std::collections::BTreeMap;
use std::fmt;

/// A node that cannot be imported, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Problem {
    /// The node's name, or that of its first output where it has none.
    pub node: String,
    /// The domain of its operator; empty for the standard one.
    pub domain: String,
    /// The node's operator.
    pub operator: String,
    /// The version of the operators of that domain.
    pub version: i64,
    /// Types and dimensions of the values that it reads: `"f32[1,3], i64[2]"`.
    pub operands: String,
    /// The reason why it cannot be imported.
    pub reason: String,
}

impl Problem {
    /// The node's operator with domain and version: `"Einsum (version 12)"`.
    pub fn kind(&self) -> String {
        match &self.domain[..] {
            "" => format!("{} (version {})", self.operator, self.version),
            domain => format!("{domain}.{} (version {})", self.operator, self.version),
        }
    }
}

/// All problems of a model, grouped by operator.
pub(super) struct Problems<'a>(pub &'a [Problem]);

impl fmt::Display for Problems<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut groups = BTreeMap::<String, Vec<&Problem>>::new();
        self.0.iter().for_each(|problem| groups.entry(problem.kind()).or_default().push(problem));
        let nodes = if self.0.len() == 1 { "node" } else { "nodes" };
        write!(f, "{} {nodes} cannot be imported", self.0.len())?;
        for (kind, problems) in groups {
            write!(f, "; {kind}:")?;
            for (index, Problem { node, operands, reason, .. }) in problems.into_iter().enumerate() {
                write!(f, "{} `{node}` of {operands}: {reason}", if index > 0 { "," } else { "" })?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_grouped_by_operator() {
        let problem = |node: &str, domain: &str, operator: &str| Problem {
            node: node.into(),
            domain: domain.into(),
            operator: operator.into(),
            version: 3,
            operands: "f32[2]".into(),
            reason: "because".into(),
        };
        let all = [problem("a", "", "Odd"), problem("b", "org", "Strange"), problem("c", "", "Odd")];
        assert_eq!(
            Problems(&all).to_string(),
            "3 nodes cannot be imported; Odd (version 3): `a` of f32[2]: because, `c` of f32[2]: because; \
             org.Strange (version 3): `b` of f32[2]: because"
        );
        let one = "1 node cannot be imported; Odd (version 3): `a` of f32[2]: because";
        assert_eq!(Problems(&all[..1]).to_string(), one);
    }
}
