"use strict";
// Swagger UI over the document that this server gives of itself. It validates nothing elsewhere.
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#api", validatorUrl: null, deepLinking: true });
