-- Asks a service whether a request may go on. HAProxy goes on with the next rule
-- when a script fails, so what counts is said in a variable: that it may.
-- Another action asks a service for an answer in place of that of a server.

-- What concerns a connection, not the request.
local own = {
	["connection"] = true, ["keep-alive"] = true, ["proxy-connection"] = true, ["te"] = true, ["trailer"] = true, ["transfer-encoding"] = true, ["upgrade"] = true,
	["content-length"] = true, ["expect"] = true, ["host"] = true, ["x-sallyport-backend"] = true, ["x-sallyport-secret"] = true, ["x-sallyport-answer"] = true,
}

-- The largest page, in bytes: of its body, and of head and body together. HAProxy makes an answer in one buffer, of 32 kB.
local most_of_body, most_of_page = 24576, 28672

-- Splits a list of names; nil stands for all of them.
local function names(list)
	if list == "*" then
		return nil
	end
	local set = {}
	for name in string.gmatch(list, "[^,]+") do
		set[name] = true
	end
	return set
end

-- Spells a name of a header as servers see it that fold "_" and "." to "-".
local function fold(name)
	return (string.gsub(name, "[_.]", "-"))
end

-- Counts the values of a header.
local function count(values)
	local n = 0
	for _ in pairs(values or {}) do
		n = n + 1
	end
	return n
end

-- Reads a number of bytes. Returns nil if there are fewer, or more than there is room for.
local function bytes(s, length, room)
	if length == 0 then
		return ""
	end
	local part = length <= room and s:receive(length)
	return part and #part == length and part or nil
end

-- Reads the body of an answer whose head has so many bytes. Returns nil for one that is too large, or that breaks off.
local function body_of(s, headers, head)
	local room = math.min(most_of_body, most_of_page - head)
	if not headers["transfer-encoding"] then
		return bytes(s, tonumber((headers["content-length"] or {})[1]) or room + 1, room)
	end
	local body = ""
	while true do
		local line = s:receive("*l")
		local length = line and tonumber(string.match(line, "^%x+"), 16)
		local chunk = length and bytes(s, length, room - #body)
		if not chunk or length == 0 then
			return chunk and body
		end
		body = body .. chunk
		s:receive("*l")
	end
end

-- Sends the request and reads the head of the answer: a status, headers by name, and the body if it is wanted.
local function exchange(socket, lines, wants_body)
	local s = core.tcp()
	s:settimeout(5)
	if not s:connect(socket) then
		return nil
	end
	local status, headers, body, head = nil, {}, nil, 0
	if s:send(table.concat(lines, "\r\n") .. "\r\n\r\n") then
		local line = s:receive("*l")
		status = line and tonumber(string.match(line, "^HTTP/1%.[01] (%d%d%d)"))
		for _ = 1, 200 do
			line = status and s:receive("*l")
			if not line or line == "" or line == "\r" then
				break
			end
			head = head + #line + 16 -- and what HAProxy notes of each
			local name, value = string.match(line, "^([^:%s]+):%s*(.-)%s*$")
			if name then
				name = string.lower(name)
				headers[name] = headers[name] or {}
				table.insert(headers[name], value)
			end
		end
		body = status and wants_body and body_of(s, headers, head)
	end
	s:close()
	return status, headers, body
end

-- Adds the headers of an answer to a reply: the wanted ones, nil stands for all.
local function add_headers(reply, headers, wanted)
	for header, values in pairs(headers) do
		if not own[header] and (not wanted or wanted[header]) then
			for _, value in ipairs(values) do
				reply:add_header(header, value)
			end
		end
	end
end

core.register_action("sallyport_ask", { "http-req" }, function(txn, backend, host, method, path, asked, succeed, fail, signin, set)
	local tls = txn.f:ssl_fc() -- a number before 3.1
	local scheme = (tls == 1 or tls == true) and "https" or "http"
	local said, url = txn.f:req_fhdr("host") or "", txn.f:pathq() or "/"
	local name = string.lower(said)
	local host_only = string.gsub(name, ":%d*$", "") -- by which the request was routed
	if method == "*" then
		method = txn.f:method()
	end
	if host == "*" then
		host = host_only
	end
	local lines = {
		method .. " " .. path .. " HTTP/1.1", "host: " .. host, "connection: close", "content-length: 0", "x-sallyport-backend: " .. backend,
		"x-sallyport-secret: " .. txn:get_var("proc.asksecret"),
	}
	local added = {
		["x-forwarded-for"] = tostring(txn.f:src()), ["x-real-ip"] = tostring(txn.f:src()), ["x-forwarded-proto"] = scheme, ["x-forwarded-host"] = host_only, ["x-original-host"] = said, ["x-forwarded-uri"] = url,
		["x-forwarded-method"] = txn.f:method(), ["x-original-method"] = txn.f:method(), ["x-original-url"] = scheme .. "://" .. name .. url,
		["x-auth-request-redirect"] = url,
	}
	local replaced, n = {}, 0
	for header in string.gmatch(set ~= "-" and set or "", "[^,]+") do
		local value = txn:get_var("txn.sallyport_ask" .. n)
		if not value or string.find(value, "%c") then
			return
		end
		replaced[fold(header)], n = true, n + 1
		if value ~= "" then
			table.insert(lines, header .. ": " .. value)
		end
	end
	for header, value in pairs(added) do
		if not replaced[header] then
			table.insert(lines, header .. ": " .. value)
		end
	end
	local wanted = names(asked)
	for header, values in pairs(txn.http:req_get_headers()) do
		if not own[fold(header)] and not added[fold(header)] and not replaced[fold(header)] and (not wanted or wanted[header]) then
			for _, value in pairs(values) do
				table.insert(lines, header .. ": " .. value)
			end
		end
	end

	local status, headers = exchange(txn:get_var("proc.asksocket"), lines)
	if not status then
		return
	end
	if status >= 200 and status < 300 then
		local given = names(succeed) or {}
		for header in pairs(given) do
			for name in pairs(txn.http:req_get_headers()) do
				if fold(name) == fold(header) then
					txn.http:req_del_header(name) -- whatever the client says of itself
				end
			end
		end
		for header in pairs(given) do
			for _, value in ipairs(headers[header] or {}) do
				txn.http:req_add_header(header, value)
			end
		end
		-- HAProxy leaves out a header for which the buffer has no room, and does not report it.
		local there = txn.http:req_get_headers()
		for header in pairs(given) do
			if count(there[header]) ~= count(headers[header]) then
				return
			end
		end
		if headers["set-cookie"] then
			txn:set_priv(headers["set-cookie"])
			txn:set_var("txn.sallyport_cookies", "yes")
		end
		txn:set_var("txn.sallyport_auth", "yes")
	elseif status == 401 and signin == "signin" then
		txn:set_var("txn.sallyport_auth", "signin")
	elseif status == 401 or status == 403 or status == 301 or status == 302 or status == 303 or status == 307 or status == 308 then
		local reply = txn:reply{ status = status }
		add_headers(reply, headers, names(fail))
		txn:done(reply)
	end
end, 9)

-- Adds the cookies that the service sets when it allows the request: a session that it has renewed.
core.register_action("sallyport_cookies", { "http-res" }, function(txn)
	for _, value in ipairs(txn:get_priv() or {}) do
		txn.http:res_add_header("set-cookie", value)
	end
end, 0)

-- Replaces the answer of a server by the page of a service. Without a page the answer stays.
core.register_action("sallyport_page", { "http-res" }, function(txn, backend, namespace)
	local method = txn:get_var("txn.page_head") and "HEAD" or "GET"
	local lines = {
		method .. " / HTTP/1.1", "connection: close", "x-sallyport-backend: " .. backend, "x-sallyport-secret: " .. txn:get_var("proc.asksecret"),
		"x-code: " .. txn.f:status(), "x-namespace: " .. namespace, "x-forwarded-for: " .. tostring(txn.f:src()),
	}
	local said = {
		["host"] = txn:get_var("txn.page_host"), ["accept"] = txn:get_var("txn.page_format"), ["x-format"] = txn:get_var("txn.page_format"), ["x-original-uri"] = txn:get_var("txn.page_uri"),
		["x-request-id"] = txn:get_var("txn.page_id"),
	}
	for name, value in pairs(said) do
		if value and not string.find(value, "%c") then
			table.insert(lines, name .. ": " .. value)
		end
	end
	local status, headers, body = exchange(txn:get_var("proc.asksocket"), lines, method == "GET")
	-- HAProxy itself has answered without this header.
	if not status or not headers["x-sallyport-answer"] or method == "GET" and not body then
		return
	end
	local reply = txn:reply{ status = status, body = body or nil }
	add_headers(reply, headers)
	txn:done(reply)
end, 2)
