/* The part of libzmq's C interface that clients/cpp/edgeserve.hpp uses, for tests on machines that have libzmq (pyzmq's
   wheel brings one) and not its header. The values are those of libzmq 4's stable ABI; programs include libzmq's own. */
#ifndef EDGESERVE_TEST_ZMQ_H
#define EDGESERVE_TEST_ZMQ_H
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef struct zmq_msg_t {
  __attribute__((aligned(sizeof(void *)))) unsigned char _[64];
} zmq_msg_t;
typedef struct zmq_pollitem_t {
  void *socket;
  int fd;
  short events;
  short revents;
} zmq_pollitem_t;
#define ZMQ_PAIR 0
#define ZMQ_DEALER 5
#define ZMQ_LINGER 17
#define ZMQ_RECONNECT_IVL 18
#define ZMQ_SNDHWM 23
#define ZMQ_RCVHWM 24
#define ZMQ_CURVE_PUBLICKEY 48
#define ZMQ_CURVE_SECRETKEY 49
#define ZMQ_CURVE_SERVERKEY 50
#define ZMQ_DONTWAIT 1
#define ZMQ_SNDMORE 2
#define ZMQ_POLLIN 1
#define ZMQ_EVENT_DISCONNECTED 0x0200
int zmq_errno(void);
const char *zmq_strerror(int number);
void *zmq_ctx_new(void);
int zmq_ctx_term(void *context);
void *zmq_socket(void *context, int type);
int zmq_close(void *socket);
int zmq_setsockopt(void *socket, int option, const void *value, size_t size);
int zmq_connect(void *socket, const char *address);
int zmq_socket_monitor(void *socket, const char *address, int events);
int zmq_send(void *socket, const void *data, size_t size, int flags);
int zmq_recv(void *socket, void *data, size_t size, int flags);
int zmq_msg_init(zmq_msg_t *message);
int zmq_msg_recv(zmq_msg_t *message, void *socket, int flags);
int zmq_msg_close(zmq_msg_t *message);
int zmq_msg_more(const zmq_msg_t *message);
void *zmq_msg_data(zmq_msg_t *message);
size_t zmq_msg_size(const zmq_msg_t *message);
int zmq_poll(zmq_pollitem_t *items, int count, long timeout_ms);
int zmq_curve_keypair(char *public_key, char *secret_key);
#ifdef __cplusplus
}
#endif
#endif
