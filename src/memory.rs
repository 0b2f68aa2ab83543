//! The free memory of the host.

use std::fs;
use std::path::Path;

/// The bytes of host memory that this process can still get: the least of what the kernel, the control groups of the
/// process and the limit of its address space leave. `None` if none of them gives a figure.
pub(crate) fn free_bytes() -> Option<u64> {
    free_below(Path::new("/"))
}

/// The bytes that this process can still get, by the files below `root`.
fn free_below(root: &Path) -> Option<u64> {
    let available = field(&read(&root.join("proc/meminfo")), "MemAvailable:").map(|kib| kib << 10);
    let left = [available, left_in_groups(root), left_to_map(root)];
    left.into_iter().flatten().min()
}

/// The bytes that `ulimit -v` leaves; `None` without a limit.
fn left_to_map(root: &Path) -> Option<u64> {
    let process = root.join("proc/self");
    let limit = field(&read(&process.join("limits")), "Max address space")?;
    let mapped = field(&read(&process.join("status")), "VmSize:")? << 10;
    Some(limit.saturating_sub(mapped))
}

/// The least of the bytes that the process's control groups, and the groups above them, leave; `None` without a limit.
fn left_in_groups(root: &Path) -> Option<u64> {
    let groups = read(&root.join("proc/self/cgroup"));
    let of_line = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let version = match controllers {
            "" => &SECOND,
            _ if controllers.split(',').any(|controller| controller == "memory") => &FIRST,
            _ => return None,
        };
        let top = root.join("sys/fs/cgroup").join(version.folder);
        let groups = Path::new(path.trim_start_matches('/')).ancestors();
        groups.filter_map(|group| version.left_in(&top.join(group))).min()
    };
    groups.lines().filter_map(of_line).min()
}

/// The files in which a version of control groups has its figures.
struct Version {
    folder: &'static str,
    limit: &'static str,
    used: &'static str,
    /// The names in `memory.stat` of the used memory that the kernel can take back: pages of files.
    files: [&'static str; 2],
}

const FIRST: Version = Version {
    folder: "memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    files: ["total_inactive_file", "total_active_file"],
};
const SECOND: Version =
    Version { folder: "", limit: "memory.max", used: "memory.current", files: ["inactive_file", "active_file"] };

impl Version {
    /// The bytes that a group's limit leaves; `None` if it has no limit.
    fn left_in(&self, group: &Path) -> Option<u64> {
        let number = |file| read(&group.join(file)).trim().parse::<u64>().ok();
        let (limit, used) = (number(self.limit)?, number(self.used)?);
        let stat = read(&group.join("memory.stat"));
        let files: u64 = self.files.iter().filter_map(|name| field(&stat, name)).sum();
        Some(limit.saturating_sub(used.saturating_sub(files)))
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// The number that follows a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut values = text.lines().filter_map(|line| line.strip_prefix(name)).map(str::split_whitespace);
    values.next()?.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A folder with these files in place of `/`. The test removes it.
    fn root(name: &str, files: &[(&str, &str)]) -> PathBuf {
        let root = std::env::temp_dir().join(format!("trefoil-free-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    /// The free bytes of a host with these files.
    fn free(name: &str, files: &[(&str, &str)]) -> Option<u64> {
        let root = root(name, files);
        let free = free_below(&root);
        fs::remove_dir_all(root).unwrap();
        free
    }

    const MEMINFO: (&str, &str) = ("proc/meminfo", "MemTotal:  4000 kB\nMemAvailable:  2000 kB\n");

    #[test]
    fn the_least_of_all_limits_counts() {
        assert_eq!(free("none", &[]), None);
        assert_eq!(free("kernel", &[MEMINFO]), Some(2000 << 10));
        let unlimited = ("proc/self/limits", "Max address space  unlimited  unlimited  bytes\n");
        let status = ("proc/self/status", "VmPeak:\t 900 kB\nVmSize:\t 300 kB\n");
        assert_eq!(free("unlimited", &[MEMINFO, unlimited, status]), Some(2000 << 10));
        let limited =
            ("proc/self/limits", "Max cpu time  1  1  seconds\nMax address space  1024000  unlimited  bytes\n");
        assert_eq!(free("mapped", &[MEMINFO, limited, status]), Some(700 << 10));
    }

    #[test]
    fn groups_and_those_above_them_count_without_what_files_hold() {
        let group = ("proc/self/cgroup", "0::/a/b\n");
        let own = [("sys/fs/cgroup/a/b/memory.max", "max\n"), ("sys/fs/cgroup/a/b/memory.current", "5\n")];
        let above = [
            ("sys/fs/cgroup/a/memory.max", "1000000\n"),
            ("sys/fs/cgroup/a/memory.current", "900000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 200000\nactive_file 100000\n"),
        ];
        assert_eq!(free("second", &[&[MEMINFO, group], &own[..], &above].concat()), Some(400_000));
        let first = [
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/y\n"),
            ("sys/fs/cgroup/memory/y/memory.limit_in_bytes", "3000\n"),
            ("sys/fs/cgroup/memory/y/memory.usage_in_bytes", "1000\n"),
        ];
        assert_eq!(free("first", &[&[MEMINFO], &first[..]].concat()), Some(2000));
    }
}
