//! What `nft` shows beside a pool, and by which a start finds its numbers again: `k8s/web ipv4`, `k8s/web ipv6 local`.

use vipd_model::{Family, Policy, ServiceKey};

use super::arrange::fnv;

/// What fits into the kernel's comment.
const BYTES: usize = 250;

/// The label of a pool. A name that is too long is cut, and told apart by a hash.
pub(super) fn label(service: &ServiceKey, family: Family, policy: Policy) -> String {
    let suffix = match (family, policy) {
        (Family::V4, Policy::All) => " ipv4",
        (Family::V6, Policy::All) => " ipv6",
        (Family::V4, Policy::Local) => " ipv4 local",
        (Family::V6, Policy::Local) => " ipv6 local",
    };
    let mut name =
        format!("{}/{}", escaped(service.owner.as_str()).replace('/', "%2f"), escaped(service.name.as_str()));
    if name.len() + suffix.len() > BYTES {
        let hash = format!("~{:016x}", fnv(name.bytes()));
        let mut end = BYTES - suffix.len() - hash.len();
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        name.truncate(end);
        name.push_str(&hash);
    }
    name + suffix
}

/// The service of a label, if it has one that was not cut.
pub(super) fn service(label: &str) -> Option<ServiceKey> {
    let name = label.strip_suffix(" local").unwrap_or(label);
    let name = name.strip_suffix(" ipv4").or_else(|| name.strip_suffix(" ipv6"))?;
    let (owner, name) = name.split_once('/')?;
    ServiceKey::new(&unescaped(owner)?, &unescaped(name)?).ok()
}

/// Without what would end the comment, or be taken for the mark of a cut.
fn escaped(name: &str) -> String {
    name.replace('%', "%25").replace('"', "%22").replace('~', "%7e")
}

fn unescaped(text: &str) -> Option<String> {
    let name = text.replace("%22", "\"").replace("%2f", "/").replace("%7e", "~").replace("%25", "%");
    (escaped(&name) == text || escaped(&name).replace('/', "%2f") == text).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_leads_back_to_its_service() {
        for name in ["web", "a/b", "say \"hi\" %2f ~", "naïve ipv4 local"] {
            let key = ServiceKey::new("k8s/x", name).unwrap();
            for family in Family::ALL {
                for policy in [Policy::All, Policy::Local] {
                    assert_eq!(service(&label(&key, family, policy)), Some(key.clone()), "{name}");
                }
            }
        }
    }

    #[test]
    fn a_long_name_is_cut_and_still_its_own() {
        let key = |end: &str| ServiceKey::new("k8s", &format!("{}{end}", "ä".repeat(125))).unwrap();
        let of = |end| label(&key(end), Family::V6, Policy::Local);
        assert!(of("a").len() <= BYTES && of("a") != of("b"));
        assert_eq!(service(&of("a")), None);
    }
}
