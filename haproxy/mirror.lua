-- Copies requests to other servers, and ignores the answers. A filter reads the body while HAProxy passes it on. A task then sends the copy, so the request waits for nothing.

-- Bounds of this thread, for the copies that are under way: of all tenants, and of one. Each has at most so many bytes of body.
local most, most_of_one, most_bytes = 128, 16, 16384
-- Seconds to connect, and to wait for the first line of the answer.
local patience = 5

local all, of = 0, {}

-- What concerns a connection, not the request, and what this file adds.
local own = {
	["connection"] = true, ["keep-alive"] = true, ["proxy-connection"] = true, ["te"] = true, ["trailer"] = true, ["transfer-encoding"] = true, ["upgrade"] = true,
	["content-length"] = true, ["expect"] = true, ["x-sallyport-backend"] = true, ["x-sallyport-secret"] = true, ["x-sallyport-source"] = true,
}

local function count(tenant, by)
	all, of[tenant] = all + by, (of[tenant] or 0) + by
	if of[tenant] == 0 then
		of[tenant] = nil
	end
end

-- Returns the names of the backends, and their tenant, to which this request is copied.
local function targets(txn)
	local backends, tenant = {}, nil
	for place = 0, 7 do
		local target = txn:get_var("txn.copy" .. place)
		if target then
			local name
			tenant, name = string.match(target, "^(.-):(.*)$")
			table.insert(backends, name)
		end
	end
	return backends, tenant
end

-- Returns the lines of the request's head. It returns nil if the request cannot be copied.
local function head(txn, message)
	local method, from = message:get_stline().method, tostring(txn:get_var("txn.copy_from"))
	local path, host = txn:get_var("txn.copy_to") or txn:get_var("txn.copy_path") or "", txn:get_var("txn.copy_host")
	local headers = message:get_headers()
	if headers["upgrade"] or string.find(method .. path, "[%c ]") or string.sub(path, 1, 1) ~= "/" then
		return nil
	end
	local lines = { method .. " " .. path .. " HTTP/1.1", "connection: close", "x-sallyport-source: " .. from }
	if host then
		headers["host"] = { [0] = host }
	end
	for name, values in pairs(headers) do
		if not own[(string.gsub(name, "[_.]", "-"))] then
			local last = #values
			if name == "x-forwarded-for" and values[last] == from then
				last = last - 1 -- the backend of the copy adds it again
			end
			for i = 0, last do
				table.insert(lines, name .. ": " .. values[i])
			end
		end
	end
	return lines
end

-- Sends a copy. HAProxy passes the head of an answer on as a whole, so no server holds this up for longer than the timeout.
local function send(socket, text)
	local s = core.tcp()
	s:settimeout(patience)
	if s:connect(socket) and s:send(text) then
		s:receive("*l")
	end
	s:close()
end

local Mirror = { id = "sallyport mirror", flags = filter.FLT_CFG_FL_HTX }
Mirror.__index = Mirror

function Mirror:new()
	return setmetatable({}, Mirror)
end

function Mirror:http_headers(txn, message)
	if message:is_resp() then
		return
	end
	local backends, tenant = targets(txn)
	if #backends == 0 or all + #backends > most or (of[tenant] or 0) + #backends > most_of_one then
		return
	end
	local lines = head(txn, message)
	if not lines then
		return
	end
	self.tenant, self.backends, self.lines, self.body, self.size = tenant, backends, lines, {}, 0
	self.bare = txn:get_var("txn.copy_bare")
	self.socket, self.secret = txn:get_var("proc.mirrorsocket"), txn:get_var("proc.mirrorsecret")
	count(tenant, #backends)
	filter.register_data_filter(self, message.channel)
end

-- Forgets a copy that is not sent.
function Mirror:forget()
	if self.backends then
		count(self.tenant, -#self.backends)
		self.backends, self.lines, self.body = nil, nil, nil
	end
end

function Mirror:http_payload(txn, message)
	if message:is_resp() or not self.backends or self.bare then
		return
	end
	local part = message:body()
	if part and #part > 0 then
		self.size = self.size + #part
		table.insert(self.body, part)
	end
	if self.size > most_bytes then
		self:forget()
	end
end

function Mirror:http_end(txn, message)
	if message:is_resp() or not self.backends then
		return
	end
	table.insert(self.lines, "content-length: " .. self.size)
	local common, body, tenant, socket = table.concat(self.lines, "\r\n"), table.concat(self.body), self.tenant, self.socket
	local secret = "x-sallyport-secret: " .. self.secret
	for _, backend in ipairs(self.backends) do
		local text = common .. "\r\n" .. secret .. "\r\nx-sallyport-backend: " .. backend .. "\r\n\r\n" .. body
		count(tenant, 1)
		core.register_task(function()
			pcall(send, socket, text)
			count(tenant, -1)
		end)
	end
	self:forget()
end

function Mirror:end_analyze(txn, channel)
	if not channel:is_resp() then
		self:forget()
	end
end

core.register_filter("sallyport_mirror", Mirror, function(mirror, args)
	return mirror
end)
