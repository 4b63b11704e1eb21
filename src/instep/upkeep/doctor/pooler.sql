-- Where the server itself is.

-- name: address
-- Where this session arrived at the server: no address where it came by a socket.
select host(inet_server_addr()), inet_server_port(), session_user, current_database()

-- name: socket
select current_setting('unix_socket_directories'), current_setting('data_directory'), current_setting('port')
