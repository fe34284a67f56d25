//! Puts the parts together.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Context as _;
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::net::TcpListener;
use vipd_client::{CallError, Client};
use vipd_proto::v1;

use crate::config::Config;
use crate::events::{self, Voice};
use crate::health::Pages;
use crate::metrics::Metrics;
use crate::push::Push;
use crate::shared::Shared;
use crate::translate::OWNER;
use crate::{http, watch};

/// Serves until it is dropped.
///
/// # Errors
/// What cannot get better by waiting: a kubeconfig that is none, certificates that cannot be used.
pub async fn run(config: Config) -> anyhow::Result<()> {
    for sentence in &config.ignored {
        tracing::warn!("configuration: {sentence}");
    }
    let api = api_server(&config).await?;
    let vipd = Client::connect_lazy(&config.vipd)?;
    tracing::info!(node = config.node_name, vipd = %config.vipd, "started");
    let shared = Arc::new(Shared::new(config.node_name, config.settings));
    let metrics = Arc::new(Metrics::new());
    let (voice, said) = Voice::new(Arc::clone(&metrics));
    let pages = Pages { shared: Arc::clone(&shared), metrics: Arc::clone(&metrics), client: vipd.clone() };
    let push = Push::new(vipd, Arc::clone(&shared), Arc::clone(&metrics), voice, config.allow_large_removal);
    tokio::join!(
        watch::run(api.clone(), Arc::clone(&shared)),
        push.run(),
        events::write(api, shared, metrics, said),
        health_pages(config.health, pages.clone()),
        metrics_pages(config.metrics, pages),
    );
    Ok(())
}

/// Deletes everything that was declared for Kubernetes.
///
/// # Errors
/// As vipd says.
pub async fn withdraw(config: &Config) -> anyhow::Result<u64> {
    let vipd = Client::connect(&config.vipd).await?;
    let request = v1::DeleteOwnerRequest { name: OWNER.to_owned(), options: None };
    let answer = vipd.dataplane().delete_owner(request).await.map_err(CallError::from)?;
    Ok(answer.into_inner().services_removed)
}

async fn api_server(config: &Config) -> anyhow::Result<kube::Client> {
    let found = match &config.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).with_context(|| format!("kubeconfig {}", path.display()))?;
            kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?
        }
        None => kube::Config::infer().await.context("no kubeconfig was given, and this is no pod")?,
    };
    Ok(kube::Client::try_from(found)?)
}

async fn health_pages(address: Option<SocketAddr>, pages: Pages) {
    let Some(mut address) = address else { return };
    // A host without IPv6 cannot listen on [::].
    if address.ip().is_unspecified() && TcpListener::bind((address.ip(), 0)).await.is_err() {
        address.set_ip(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    }
    http::serve(address, move |path| {
        let page = pages.health(&path);
        async move { page }
    })
    .await;
}

async fn metrics_pages(address: Option<SocketAddr>, pages: Pages) {
    let Some(address) = address else { return };
    http::serve(address, move |path| {
        let pages = pages.clone();
        async move { pages.metrics(&path).await }
    })
    .await;
}
