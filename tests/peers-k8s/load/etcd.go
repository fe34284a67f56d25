package main

import (
	"bytes"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes/scheme"
)

// Objects in one transaction of etcd, which allows 128.
const batch = 120

// write puts services, their endpoints and their addresses into etcd as the API server would have stored them; through
// the API server 10,000 of them would take minutes.
func write(from, to, endpoints int) {
	db, err := clientv3.New(clientv3.Config{Endpoints: []string{*etcd}})
	fail(err)
	encoder := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	var pending []clientv3.Op
	flush := func() {
		if len(pending) > 0 {
			_, err := db.Txn(ctx).Then(pending...).Commit()
			fail(err)
			pending = pending[:0]
		}
	}
	put := func(key string, object runtime.Object) {
		var encoded bytes.Buffer
		fail(encoder.Encode(object, &encoded))
		pending = append(pending, clientv3.OpPut("/registry/"+key, encoded.String()))
		if len(pending) >= batch {
			flush()
		}
	}
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	meta := func(kind, group string) metav1.TypeMeta { return metav1.TypeMeta{Kind: kind, APIVersion: group} }

	for i := from; i < to; i++ {
		service, _ := declared(i, endpoints)
		ip := &networkingv1.IPAddress{TypeMeta: meta("IPAddress", "networking.k8s.io/v1"),
			ObjectMeta: metav1.ObjectMeta{Name: service.Spec.ClusterIP, UID: uuid.NewUUID(), CreationTimestamp: now,
				Labels: map[string]string{networkingv1.LabelIPAddressFamily: "IPv4", networkingv1.LabelManagedBy: "ipallocator.k8s.io"}},
			Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: service.Name}}}
		put("ipaddresses/"+ip.Name, ip)
	}
	flush()
	// The API server must know the addresses before it meets the services, or its repair loop complains.
	time.Sleep(2 * time.Second)

	single, everywhere := corev1.IPFamilyPolicySingleStack, corev1.ServiceInternalTrafficPolicyCluster
	for i := from; i < to; i++ {
		service, slice := declared(i, endpoints)
		service.TypeMeta = meta("Service", "v1")
		service.UID, service.CreationTimestamp = uuid.NewUUID(), now
		spec := &service.Spec
		spec.Type, spec.SessionAffinity, spec.ClusterIPs = corev1.ServiceTypeClusterIP, corev1.ServiceAffinityNone, []string{spec.ClusterIP}
		spec.IPFamilies, spec.IPFamilyPolicy, spec.InternalTrafficPolicy = []corev1.IPFamily{corev1.IPv4Protocol}, &single, &everywhere
		spec.Ports[0].TargetPort.IntVal = 8080
		slice.TypeMeta = meta("EndpointSlice", discoveryv1.SchemeGroupVersion.String())
		slice.UID, slice.CreationTimestamp, slice.Generation = uuid.NewUUID(), now, 1
		put("services/specs/default/"+service.Name, service)
		put("endpointslices/default/"+slice.Name, slice)
	}
	flush()
}
