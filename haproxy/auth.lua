-- Asks a service whether a request may go on. HAProxy goes on with the next rule
-- when a script fails, so what counts is said in a variable: that it may.

-- What concerns a connection, not the request.
local own = {
	["connection"] = true, ["keep-alive"] = true, ["proxy-connection"] = true, ["te"] = true, ["trailer"] = true, ["transfer-encoding"] = true, ["upgrade"] = true,
	["content-length"] = true, ["expect"] = true, ["host"] = true, ["x-sallyport-backend"] = true, ["x-sallyport-secret"] = true,
}

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

-- Sends the request and reads the head of the answer: a status, and headers by name.
local function exchange(socket, lines)
	local s = core.tcp()
	s:settimeout(5)
	if not s:connect(socket) then
		return nil
	end
	local status, headers = nil, {}
	if s:send(table.concat(lines, "\r\n") .. "\r\n\r\n") then
		local line = s:receive("*l")
		status = line and tonumber(string.match(line, "^HTTP/1%.[01] (%d%d%d)"))
		for _ = 1, 200 do
			line = status and s:receive("*l")
			if not line or line == "" or line == "\r" then
				break
			end
			local name, value = string.match(line, "^([^:%s]+):%s*(.-)%s*$")
			if name then
				name = string.lower(name)
				headers[name] = headers[name] or {}
				table.insert(headers[name], value)
			end
		end
	end
	s:close()
	return status, headers
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
		wanted = names(fail)
		for header, values in pairs(headers) do
			if not own[header] and (not wanted or wanted[header]) then
				for _, value in ipairs(values) do
					reply:add_header(header, value)
				end
			end
		end
		txn:done(reply)
	end
end, 9)

-- Adds the cookies that the service sets when it allows the request: a session that it has renewed.
core.register_action("sallyport_cookies", { "http-res" }, function(txn)
	for _, value in ipairs(txn:get_priv() or {}) do
		txn.http:res_add_header("set-cookie", value)
	end
end, 0)
